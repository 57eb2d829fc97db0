"""slow_vocab.py SIZE FILE…: prints the vocab.bpe that `vocab` must learn, by definition: all pairs are counted again
before each merge. Needs no packages."""

import json
import re
import sys
import unicodedata
from collections import Counter
from pathlib import Path

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
PIECES = [chr(byte) for byte in PRINTABLE] + [chr(256 + i) for i in range(len(OTHERS))]   # in the order of their ids
ID_OF_BYTE = {byte: i for i, byte in enumerate(PRINTABLE + OTHERS)}


def documents(path):
    text = Path(path).read_bytes().decode()
    if path.endswith(".jsonl"):
        return [json.loads(line)["text"] for line in text.split("\n") if line.strip()]
    return re.split(r"(?:\A|\r?\n|(?<=\n))<\|endoftext\|>[ \t\r]*(?:\n|\Z)", text)


def words_of(text):
    """GPT-2's pattern, with \\p{L}, \\p{N} and White_Space as sets of the characters of this text."""
    kinds = {kind: "".join(map(re.escape, sorted(c for c in {*text, *"a0 "} if in_kind(c))))
             for kind, in_kind in (("L", lambda c: unicodedata.category(c)[0] == "L"),
                                   ("N", lambda c: unicodedata.category(c)[0] == "N"),
                                   ("S", lambda c: c.isspace() and c not in "\x1c\x1d\x1e\x1f"))}
    pattern = "'s|'t|'re|'ve|'m|'ll|'d| ?[L]+| ?[N]+| ?[^SLN]+|[S]+(?![^S])|[S]+"
    return re.findall(re.sub("[SLN](?=[SLN]*\\])", lambda kind: kinds[kind[0]], pattern), text)


def merged(word, pair, new):
    out, i = [], 0
    while i < len(word):
        found = word[i:i + 2] == pair
        out.append(new if found else word[i])
        i += 1 + found
    return tuple(out)


def learn(words, size):
    """Yields each merge, left and right."""
    pieces = list(PIECES)
    while len(pieces) < size - 1:
        pairs = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            return
        pair = min(pairs, key=lambda pair: (-pairs[pair], pair))
        left, right = (pieces[i] for i in pair)
        assert left + right not in pieces   # a token would have two ids
        yield left, right
        words = Counter({merged(word, pair, len(pieces)): count for word, count in words.items()})
        pieces.append(left + right)


def main(size, *paths):
    words = Counter()
    for path in paths:
        for text in documents(path):
            words.update(tuple(ID_OF_BYTE[byte] for byte in word.encode()) for word in words_of(text))
    print("#version: 0.2", *(f"{left} {right}" for left, right in learn(words, int(size))), sep="\n")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    main(*sys.argv[1:])
