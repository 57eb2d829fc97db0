"""Token shards and the order of samples in numpy, as specified by tost/data/dataset.h and tost/base/rng.h."""

import glob
import os

import numpy as np

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
KINDS = {20240520: "<u2", 20240801: "<u4"}  # magic: dtype


def mix(x):
    """The output function of splitmix64."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


class Rng:
    """xoshiro256++, seeded like rng_seeded."""

    def __init__(self, seed, stream):
        x = mix(((mix((seed + GOLDEN) & MASK) ^ stream) + GOLDEN) & MASK)
        self.s = [mix((x + k * GOLDEN) & MASK) for k in range(1, 5)]

    def u64(self):
        a, b, c, d = self.s
        total = (a + d) & MASK
        result = ((total << 23 | total >> 41) + a) & MASK
        c, d = c ^ a, d ^ b
        self.s = [a ^ d, b ^ c, c ^ ((b << 17) & MASK), (d << 45 | d >> 19) & MASK]
        return result

    def below(self, n):
        """A uniform integer in [0, n)."""
        over = (1 << 64) % n
        while (x := self.u64()) < over:
            pass
        return x % n

    def permutation(self, n):
        out = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.below(i + 1)
            out[i], out[j] = out[j], out[i]
        return out


def open_shard(path):
    """Memory-maps the ids of a shard: uint16 or uint32 with llm.c's header, or raw uint16."""
    head = np.fromfile(path, dtype="<u4", count=3)
    dtype = KINDS.get(int(head[0])) if len(head) == 3 else None
    if dtype is None:
        return np.memmap(path, dtype="<u2", mode="r")
    return np.memmap(path, dtype, mode="r", offset=1024, shape=(int(head[2]),))


class Shards:
    """The shards of a glob as a stream of samples. A sample is T inputs, and T targets shifted by one token."""

    def __init__(self, pattern, T, vocab_size, order, seed=0):
        paths = [pattern] if os.path.exists(pattern) else glob.glob(os.path.expanduser(pattern))
        if not paths:
            raise FileNotFoundError(f"{pattern}: no file matches")
        self.paths = sorted(paths, key=os.fsencode)
        self.shards = [open_shard(path) for path in self.paths]
        self.T, self.vocab_size, self.order, self.seed = T, vocab_size, order, seed
        self.counts = [(len(shard) - 1) // T for shard in self.shards]  # samples
        self.tokens = sum(map(len, self.shards))
        self.samples = (self.tokens - 1) // T if order == "sequential" else sum(self.counts)
        if self.samples == 0:
            raise ValueError(f"{pattern}: {self.tokens} tokens, but a sample needs {T + 1}")
        self.epoch = self.shard = None  # shuffled: epoch and shard of the cached permutations

    def rng(self, epoch, slot):
        return Rng(self.seed, (0xDA7A << 48) + (epoch << 24) + slot)

    def read(self, s, first, n):
        """n ids, starting at token `first` of shard s and continuing in the following shards."""
        parts = []
        while n > 0:
            part = self.shards[s][first : first + n].astype(np.int64)
            if len(part) and part.max() >= self.vocab_size:
                at = int(np.argmax(part >= self.vocab_size))
                raise ValueError(f"{self.paths[s]}: token {first + at} has id {part[at]}, but the vocabulary has "
                                 f"{self.vocab_size} entries")
            parts.append(part)
            n -= len(part)
            s, first = s + 1, max(0, first - len(self.shards[s]))
        return np.concatenate(parts)

    def locate(self, i):
        """(shard, token) where sample i starts."""
        epoch, i = divmod(i, self.samples)
        if self.order == "sequential":
            s, first = 0, i * self.T
            while first >= len(self.shards[s]):
                first -= len(self.shards[s])
                s += 1
            return s, first
        if self.epoch != epoch:
            self.epoch, self.shard = epoch, None
            self.shard_order = self.rng(epoch, 0).permutation(len(self.shards))
        for s in self.shard_order:
            if i < self.counts[s]:
                break
            i -= self.counts[s]
        if self.shard != s:
            self.shard = s
            rng = self.rng(epoch, 1 + s)
            self.offset = rng.below(len(self.shards[s]) - self.counts[s] * self.T)
            self.permuted = rng.permutation(self.counts[s])
        return s, self.offset + self.permuted[i] * self.T

    def batch(self, samples):
        """inputs, targets (B,T) int64 of the B samples of these numbers."""
        ids = np.stack([self.read(*self.locate(i), self.T + 1) for i in samples])
        return ids[:, :-1], ids[:, 1:]
