"""The Token Statistics Transformer for causal language modelling, in PyTorch.

Wu et al., "Token Statistics Transformer: Linear-Time Attention via Variational Rate Reduction", ICLR 2025,
arXiv 2412.17810. The model is a GPT-2 with TSSA, token statistics self-attention, instead of softmax
attention. It is written for clarity, not speed, and uses autograd. The C and CUDA engines are tested against it.

    python3 dev/reference/tost.py generate --model out/starter-001 --prompt "Once upon a time" --tokens 100

Sizes in comments: B batch, T length, C channels (n_embd), nh heads, hs = C/nh, V vocabulary.
Needs Python 3.11 or later, torch 2.1 and safetensors.
"""

import json
import math
import re
import struct
import sys
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path


def parse(arguments):
    from cli import option_parser

    parser = option_parser(__doc__)
    parser.add_argument("command", choices=["generate"], help="print the prompt and the most likely tokens after it")
    parser.add_argument("--model", type=Path, required=True, metavar="PATH",
                        help="safetensors file, checkpoint folder or run")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE",
                        help="vocab.bpe or tokenizer.json (default: the vocab.bpe beside the model file)")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="text to continue (default: none)")
    parser.add_argument("--tokens", type=int, default=256, metavar="N",
                        help="largest number of new tokens (default: 256)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))
    from cli import need

    parse(sys.argv[1:])   # --help does not need the packages below
    need("torch", "safetensors", "numpy", "tiktoken")

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors import safe_open

ENERGY_MIN = 1e-12  # lower bound of the cumulative energy, by which a token's energy is divided; memory: added to ‖z‖²
MASS_EPS = 1e-8     # added to the cumulative membership
GAMMA_INIT = 1e-5   # initial LayerScale

HEAD, WTE = "lm_head.weight", "transformer.wte.weight"  # tied; some files contain both names
WPE = "transformer.wpe.weight"
BIGRAM = "transformer.bigram.weight"
MEMBERSHIPS = ("learned", "uniform")
CONV_WIDTH = 4
# Config entries that the published model lacks, and its values
VARIANTS = {"membership": "learned", "conv": 0, "memory": 0, "positions": "learned", "bigrams": 0}
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.int32: "I32"}


@dataclass
class TostConfig:
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    block_size: int = 1024
    vocab_size: int = 50304  # GPT-2's 50257 rounded up; the extra ids never occur
    bias: bool = False
    membership: str = "learned"  # or "uniform": 1/n_head for every head and token
    conv: int = 0  # or CONV_WIDTH: z and the input of the MLP pass through causal convolutions over time
    memory: int = 0  # or 1: each head recalls what came after similar tokens
    positions: str = "learned"  # or "none", without wpe and denom_bias: sequences can be longer than block_size
    bigrams: int = 0  # rows for pairs of tokens in the table bigram, which also has a row per token

    def metadata(self):
        """The config as in a checkpoint's __metadata__: strings, bias 0 or 1; the VARIANTS if not published."""
        entries = asdict(self) | {"bias": int(self.bias)}
        return {key: str(value) for key, value in entries.items() if key not in VARIANTS or value != VARIANTS[key]}

    def max_seq(self):
        """The longest sequence that the model can read."""
        return self.block_size if self.positions == "learned" else sys.maxsize

    def take_membership(self, metadata, path):
        """Sets the membership from a checkpoint's metadata or a published checkpoint's arguments."""
        self.membership = metadata.get("membership", "learned")
        if self.membership not in MEMBERSHIPS:
            raise ValueError(f"{path}: membership {self.membership} in the metadata is not {' or '.join(MEMBERSHIPS)}")

    @classmethod
    def from_shapes(cls, shapes, block_size):
        """Config from the names and shapes of the parameters, which determine all but the membership and, without
        positions, the block size."""
        layers = {int(m[1]) for m in (re.match(r"transformer\.h\.(\d+)\.", name) for name in shapes) if m}
        vocab_size, n_embd = shapes["transformer.wte.weight"]
        return cls(n_layer=len(layers), n_head=shapes["transformer.h.0.attn.temp"][0], n_embd=n_embd,
                   block_size=shapes[WPE][0] if WPE in shapes else block_size, vocab_size=vocab_size,
                   bias="transformer.ln_f.bias" in shapes,
                   conv=CONV_WIDTH if "transformer.h.0.attn.conv.weight" in shapes else 0,
                   memory=int("transformer.h.0.attn.memory_scale" in shapes),
                   positions="learned" if WPE in shapes else "none",
                   bigrams=shapes.get(BIGRAM, (vocab_size,))[0] - vocab_size)


def pair_rows(idx, size):
    """Rows (B,T) among `size` of each token of idx (B,T) and the one before it."""
    return (F.pad(idx.long() + 1, (1, -1)) * 2654435761 + idx) % size


class Conv(nn.Conv1d):
    """A causal convolution over time with one filter per channel, at first the identity."""

    def __init__(self, config):
        C = config.n_embd
        super().__init__(C, C, config.conv, groups=C, bias=False)
        with torch.no_grad():
            self.weight.copy_(torch.eye(config.conv)[-1])

    def forward(self, x):
        return super().forward(F.pad(x.transpose(1, 2), (self.kernel_size[0] - 1, 0))).transpose(1, 2)


def predict(z, pi):
    """The memory: o (B,nh,T,hs) from z (B,nh,T,hs) and Π (B,nh,T,1). A head's matrix G (hs,hs) predicts the z of the
    next token from the direction k of this one. It starts at 0 and is updated at each token by the delta rule:

        k[t] = z[t] / √(‖z[t]‖² + 1e-12),   o[t] = G[t] k[t]
        e[t] = Π[t] (z[t] - o[t-1]),        G[t] = G[t-1] + e[t] k[t-1]ᵀ

    Since o[t-1] = Σ_{j<t} (k[t-1]·k[j-1]) e[j], all e are the solution of one triangular system."""
    with torch.autocast(z.device.type, enabled=False):
        k = z * (z.square().sum(-1, keepdim=True) + ENERGY_MIN).rsqrt()
        before = F.pad(k, (0, 0, 1, 0))[:, :, :-1]
        system = pi * (before @ before.mT)   # only the part below the diagonal is used; the diagonal counts as 1
        e = torch.linalg.solve_triangular(system, pi * z, upper=False, unitriangular=True)
        return (k @ before.mT).tril() @ e


class TSSA(nn.Module):
    """Each head measures how much of a token's energy lies in its subspace (the membership Π), keeps the running
    second moment of the tokens that belong to it, and shrinks the token along directions in which they are small."""

    def __init__(self, config):
        super().__init__()
        nh, C = config.n_head, config.n_embd
        self.n_head = nh
        self.uniform = config.membership == "uniform"  # then temp and denom_bias are unused
        self.temp = nn.Parameter(torch.ones(nh, 1))
        self.denom_bias = nn.Parameter(torch.zeros(nh, config.block_size, 1)) if config.positions == "learned" else None
        self.c_attn = nn.Linear(C, C, bias=config.bias)
        self.conv = Conv(config) if config.conv else nn.Identity()
        self.memory_scale = nn.Parameter(torch.zeros(C)) if config.memory else None
        self.c_proj = nn.Linear(C, C, bias=config.bias)

    def project(self, x):
        """z (B,nh,T,hs), at least float32: cumsum of bf16 adds in float32, but rounds each sum to 8 bits."""
        z = self.conv(self.c_attn(x))
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        return z.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def membership(self, s):
        """Π (B,nh,T) from s = z²: a softmax over the heads, not over the tokens."""
        if self.uniform:
            return torch.full_like(s[..., 0], 1 / self.n_head)
        r = s / s.cumsum(2).clamp_min(ENERGY_MIN)
        if self.denom_bias is not None:
            r = r + self.denom_bias[:, : s.size(2)]
        return F.softmax(self.temp * r.sum(-1), dim=1)

    def forward(self, x):
        z = self.project(x)
        s = z.square()
        pi = self.membership(s).unsqueeze(-1)  # (B,nh,T,1)
        N, D = (s * pi).cumsum(2), pi.cumsum(2)
        m = N / (D + MASS_EPS)                              # (B,nh,T,hs) second moment of the head's tokens
        y = -z * pi / (1 + m)
        if self.memory_scale is not None:
            y = y + self.memory_scale.view(self.n_head, 1, -1) * predict(z, pi)
        return self.c_proj(y.transpose(1, 2).flatten(2).to(x.dtype))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        C = config.n_embd
        self.conv = Conv(config) if config.conv else nn.Identity()
        self.c_fc = nn.Linear(C, 4 * C, bias=config.bias)
        self.c_proj = nn.Linear(4 * C, C, bias=config.bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(self.conv(x))))  # the exact GELU, with erf


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        C = config.n_embd
        self.gamma1 = nn.Parameter(torch.full((C,), GAMMA_INIT))
        self.gamma2 = nn.Parameter(torch.full((C,), GAMMA_INIT))
        self.ln_1 = nn.LayerNorm(C, bias=config.bias)
        self.attn = TSSA(config)
        self.ln_2 = nn.LayerNorm(C, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.gamma1 * self.attn(self.ln_1(x))
        return x + self.gamma2 * self.mlp(self.ln_2(x))


class Rowwise(torch.optim.Optimizer):
    """Row-wise RMSProp, as in train_gpt_tost.c for the table of bigrams with --optimizer muon. params (rows,C)"""

    def __init__(self, params, lr, beta2, eps, weight_decay):
        super().__init__(params, {"lr": lr, "beta2": beta2, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, beta2 = group["lr"], group["beta2"]
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                v = state.setdefault("v", torch.zeros_like(p[:, :1]))
                v.lerp_(p.grad.square().mean(1, keepdim=True), 1 - beta2)
                scale = lr / ((v / (1 - beta2 ** state["step"])).sqrt() + group["eps"])
                p.mul_(1 - lr * group["weight_decay"]).sub_(scale * p.grad)


class Tost(nn.Module):
    """The output head is tied to wte, so the state dict contains each tensor once."""

    def __init__(self, config):
        super().__init__()
        if config.n_embd % config.n_head:
            raise ValueError(f"n_embd {config.n_embd} is not a multiple of n_head {config.n_head}")
        self.config = config
        learned = config.positions == "learned"
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(config.vocab_size, config.n_embd),
            **({"wpe": nn.Embedding(config.block_size, config.n_embd)} if learned else {}),
            "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
            **({"bigram": nn.Embedding(config.vocab_size + config.bigrams, config.n_embd)} if config.bigrams else {}),
            "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
        })
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                residual = name.endswith("c_proj")
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * config.n_layer) if residual else 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if config.bigrams:
            nn.init.zeros_(self.transformer.bigram.weight)

    def forward(self, idx, targets=None, last_only=False):
        """idx, targets (B,T); targets of -1 are ignored. Returns logits (B,T,V), or (B,1,V) for the last position if
        last_only, and the mean loss or None."""
        T, x = idx.size(1), self.transformer.wte(idx)
        if T > self.config.max_seq():
            raise ValueError(f"{T} tokens exceed block_size {self.config.block_size}")
        if self.config.positions == "learned":
            x = x + self.transformer.wpe.weight[:T]
        for block in self.transformer.h:
            x = block(x)
        if self.config.bigrams:
            pairs = self.config.vocab_size + pair_rows(idx, self.config.bigrams)
            x = x + self.transformer.bigram(idx) + self.transformer.bigram(pairs)
        x = self.transformer.ln_f(x[:, -1:] if last_only else x)
        logits = F.linear(x, self.transformer.wte.weight)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def optimizer_groups(self, weight_decay):
        """Embeddings and the weights of Linear layers decay, those of bigrams four times as fast. nanoGPT's rule, two
        dimensions or more, would also decay temp and denom_bias."""
        factors = {id(m.weight): 1.0 for m in self.modules() if isinstance(m, (nn.Linear, nn.Embedding))}
        if self.config.bigrams:
            factors[id(self.transformer.bigram.weight)] = 4.0
        groups = [{"params": [p for p in self.parameters() if factors.get(id(p), 0.0) == factor],
                   "weight_decay": factor * weight_decay} for factor in (1.0, 4.0, 0.0)]
        return [group for group in groups if group["params"]]

    @classmethod
    def from_checkpoint(cls, path):
        """Loads a model, a checkpoint folder or a run; see find_model. The config is derived from the shapes and
        must agree with the __metadata__."""
        path = find_model(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}
        return cls.from_state(state, metadata, path)

    @classmethod
    def from_state(cls, state, metadata, path):
        """A model from a state dict and the config entries of its metadata. `path` is for error messages."""
        untie_head(state, path)
        learned, block_size = metadata.get("positions") != "none", 0
        required = [WTE, "transformer.h.0.attn.temp"] + [WPE] * learned
        missing = set(required) - state.keys()
        if missing:
            raise ValueError(f"{path}: tensor '{min(missing)}' is missing: not a ToST model")
        for name in required:
            if state[name].dim() != 2 or 0 in state[name].shape:
                shape = tuple(state[name].shape)
                raise ValueError(f"{path}: tensor '{name}' has shape {shape}, expected two dimensions")
        if not learned:
            if not re.fullmatch("[1-9][0-9]*", metadata.get("block_size", "")):
                raise ValueError(f"{path}: block_size in the metadata is not a positive integer, which a model without "
                                 "positions needs")
            block_size = int(metadata["block_size"])
        config = TostConfig.from_shapes({name: tuple(tensor.shape) for name, tensor in state.items()}, block_size)
        config.take_membership(metadata, path)
        for key, value in ({key: str(value) for key, value in VARIANTS.items()} | config.metadata()).items():
            if metadata.get(key, value) != value:
                raise ValueError(f"{path}: {key} {metadata[key]} in the metadata, but {value} from the shapes")
        model = cls(config)
        expected = model.state_dict()
        for name in sorted(expected.keys() ^ state.keys()):
            fault = "missing" if name in expected else "not in this model"
            raise ValueError(f"{path}: tensor '{name}' is {fault}")
        for name, tensor in state.items():
            if tensor.shape != expected[name].shape or not tensor.is_floating_point():
                raise ValueError(f"{path}: tensor '{name}' is {tensor.dtype} {tuple(tensor.shape)}, expected "
                                 f"floats {tuple(expected[name].shape)}")
        model.load_state_dict(state)
        return model

    def save(self, path, extra=None):
        """Writes the weights in float32 for the trainer; `extra` is added to the config in __metadata__."""
        state = {name: tensor.float().cpu().contiguous() for name, tensor in self.state_dict().items()}
        write_safetensors(path, state, {"format": "pt"} | self.config.metadata() | (extra or {}) | crc32(state))


def find_model(path):
    """The file that the trainer's --model PATH selects: PATH if it is a file, else model.safetensors in a checkpoint
    folder or in the newest complete checkpoint of a run folder, or in its folder best, if that has a lower validation
    loss."""
    path = Path(path)
    if not path.is_dir():
        return path
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors"
    steps = [(int(m[1]), folder) for folder in path.iterdir()
             if (m := re.fullmatch("step_([0-9]+)", folder.name))
             and all((folder / f"{part}.safetensors").is_file() for part in ("model", "optimizer"))]
    if not steps:
        raise FileNotFoundError(f"{path}: no complete checkpoint (step_N/model.safetensors and "
                                "optimizer.safetensors) in this folder")
    newest, best = max(steps)[1] / "model.safetensors", path / "best/model.safetensors"
    if best.is_file() and validation_loss(best) < validation_loss(newest) < math.inf:
        print(f"using {best.parent}: its validation loss is lower than that of {newest.parent.name}", file=sys.stderr)
        newest = best
    return newest


def validation_loss(path):
    with safe_open(path, framework="pt") as file:
        return float((file.metadata() or {}).get("val_loss", math.inf))


def untie_head(state, path):
    """Removes the output head, which must equal wte, from a state dict."""
    head = state.pop(HEAD, None)
    if head is not None and WTE in state and not torch.equal(head, state[WTE]):
        raise ValueError(f"{path}: {HEAD} differs from wte, but the model ties them")


def crc32(tensors):
    """The checksum entry of __metadata__: CRC-32 over the data of all tensors, in order."""
    crc = 0
    for tensor in tensors.values():
        crc = zlib.crc32(tensor.numpy().data, crc)
    return {"crc32": f"{crc:08x}"}


def write_safetensors(path, tensors, metadata):
    """Writes tensors in the given order for reproducible bytes, which the safetensors library does not guarantee."""
    header, offset = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


# ----------------------------------------------------------------------------------------------------------
# Generating text: tost.py generate


@torch.no_grad()
def generate(model, ids, tokens, n_ids, stop):
    """Yields up to `tokens` most likely ids below n_ids until `stop`. For each, reads the last block_size tokens or,
    without positions, all tokens."""
    ids, longest = list(ids), model.config.max_seq()
    for _ in range(tokens):
        logits = model(torch.tensor([ids[-longest:]]), last_only=True)[0][0, 0, :n_ids]
        ids.append(logits.argmax().item())
        if ids[-1] == stop:
            return
        yield ids[-1]


def main(arguments=None):
    from cli import describe, fail
    from gpt2_encoding import load_tokenizer
    from safetensors import SafetensorError

    args = parse(arguments)
    try:
        model, encoding = Tost.from_checkpoint(args.model), load_tokenizer(args.model, args.tokenizer)
    except (OSError, ValueError, SafetensorError) as error:
        return fail(describe(error))
    prompt = encoding.encode_ordinary(args.prompt) or [encoding.eot_token]
    print(args.prompt, end="", flush=True)
    for i in generate(model, prompt, args.tokens, encoding.n_vocab, encoding.eot_token):
        sys.stdout.buffer.write(encoding.decode_single_token_bytes(i))  # a token may end within a character
        sys.stdout.buffer.flush()
    print()
    return 0


if __name__ == "__main__":
    from cli import run

    sys.exit(run(main))
