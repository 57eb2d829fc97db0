"""Generates golden files: small models with randomized parameters, and their float64 results.

    golden.py DIR
        writes DIR/NAME.params.safetensors and DIR/NAME.expect.safetensors for each of the CASES
    golden.py --verify DIR…
        recomputes every pair in the folders; exit status 1 on disagreement

NAME.params contains the weights in float32 under their published names; its __metadata__ has the config and the
hyperparameters. NAME.expect contains, in float64 (ids in int32):
    inputs, targets     (steps,B,T)     one batch per step; targets of -1 are ignored
    logits              (B,T,V)         of step 1
    grad.PARAMETER                      of step 1, before clipping
    losses, grad_norms  (steps)         norms before clipping
    after.PARAMETER                     after the last step: AdamW with decoupled weight decay and bias correction at
                                        a constant lr; gradients scaled by min(1, grad_clip/(norm + 1e-6)). With the
                                        optimizer muon, the weights of Linear by Muon, the table of bigrams by Rowwise
    layer0.tssa_in, layer0.tssa_out     (B,T,C) outputs of ln_1 and c_proj in layer 0 at step 1
    layer0.pi                           (B,nh,T) membership in layer 0 at step 1
    layer0.w                            (B,T,C) z: output of the convolution in layer 0 at step 1, if there is one

The cases in dev/test/golden were written with the versions in dev/requirements.txt.
"""

import argparse
import math
import sys
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
parser.add_argument("--verify", action="store_true", help="recompute the pairs in the folders instead")
if __name__ == "__main__":
    parser.parse_args()   # --help does not need the packages below
    sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))
    from cli import need

    need("torch", "safetensors", "numpy")

import torch
from safetensors import safe_open

from tost import BIGRAM, CONV_WIDTH, Rowwise, Tost, TostConfig, write_safetensors

# Relative to the tensor's largest value: far above float64 rounding errors, far below the effect of a bug.
TOLERANCE = 1e-10
HYPER = {"lr": 1e-3, "weight_decay": 0.1, "momentum": 0.95, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
         "grad_clip": 1.0}
CASES = {
    # sizes that are not multiples of a vector width, T < block_size, masked targets, clipping
    "odd": dict(layers=2, heads=3, channels=15, block_size=19, vocab_size=257, batch=2, seq=13, masked=5, seed=1),
    # biases, no clipping
    "biased": dict(layers=1, heads=2, channels=12, block_size=9, vocab_size=33, bias=True, batch=3, seq=9, seed=2,
                   lr=3e-3, weight_decay=0.3, grad_clip=100.0),
    # a single token and head, clipping
    "one": dict(layers=1, heads=1, channels=6, block_size=4, vocab_size=7, batch=2, seq=1, seed=3, lr=1e-2,
                weight_decay=0.0, beta1=0.8, beta2=0.99, eps=1e-6, grad_clip=0.25),
    # a sequence longer than any scan block, no clipping
    "long": dict(layers=1, heads=2, channels=8, block_size=300, vocab_size=11, batch=1, seq=300, seed=4, lr=6e-4,
                 weight_decay=0.01, grad_clip=0.5),
    # convolutions
    "conv": dict(layers=2, heads=3, channels=15, block_size=11, vocab_size=29, conv=CONV_WIDTH, batch=2, seq=9,
                 masked=3, seed=5),
    # Muon: wide, tall and square matrices; biases and convolutions, which AdamW updates; bigrams
    "muon": dict(layers=2, heads=3, channels=15, block_size=11, vocab_size=29, bias=True, conv=CONV_WIDTH, bigrams=40,
                 batch=2, seq=9, seed=10, optimizer="muon", lr=1e-2, momentum=0.9, grad_clip=0.5),
    # memory with convolutions, for more than four times the 32 tokens that CUDA kernels take at once
    "memory": dict(layers=2, heads=3, channels=15, block_size=140, vocab_size=29, conv=CONV_WIDTH, memory=1, batch=1,
                   seq=131, masked=3, seed=7),
    # no positions: a sequence longer than the block size; bigrams
    "no_positions": dict(layers=2, heads=3, channels=15, block_size=5, vocab_size=29, positions="none", bigrams=40,
                         batch=2, seq=9, seed=9),
}
STEPS = 3


class Muon:
    """Muon in the precision of its parameters: see train_gpt_tost.c. torch.optim.Muon iterates in bfloat16."""

    def __init__(self, params, lr, weight_decay, mu):
        self.lr, self.weight_decay, self.mu = lr, weight_decay, mu
        self.momentum = {p: torch.zeros_like(p) for p in params}

    @torch.no_grad()
    def step(self):
        for p, m in self.momentum.items():
            m.copy_(self.mu * m + (1 - self.mu) * p.grad)
            u = (1 - self.mu) * p.grad + self.mu * m
            x = u / u.norm().clamp_min(1e-7)
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            p.copy_(p * (1 - self.lr * self.weight_decay) - self.lr * 0.2 * math.sqrt(max(p.shape)) * x)


def make_optimizers(model, name, hyper):
    groups = model.optimizer_groups(hyper["weight_decay"])
    muon = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear) and name == "muon"]
    table = [p for key, p in model.named_parameters() if key == BIGRAM and name == "muon"]
    ids = {id(p) for p in muon + table}
    groups = [group | {"params": [p for p in group["params"] if id(p) not in ids]} for group in groups]
    groups = [group for group in groups if group["params"]]
    optimizers = [torch.optim.AdamW(groups, lr=hyper["lr"], betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"],
                                    foreach=False), Muon(muon, hyper["lr"], hyper["weight_decay"], hyper["momentum"])]
    if table:
        optimizers.append(Rowwise(table, hyper["lr"], hyper["beta2"], hyper["eps"], 4 * hyper["weight_decay"]))
    return optimizers


def randomize(model, generator):
    """Sets every parameter to random values, scaled so that all terms of the gradients are significant."""
    def normal(p, mean, std):
        p.copy_(torch.randn(p.shape, generator=generator) * std + mean)

    with torch.no_grad():
        for name, p in model.named_parameters():
            kind = name.split(".")[-1]
            if kind.startswith("gamma"):
                p.copy_(torch.rand(p.shape, generator=generator) * 0.7 + 0.3)
            elif kind == "temp":
                normal(p, 1.0, 0.3)
            elif kind in ("denom_bias", "bias"):
                normal(p, 0.0, 0.1)
            elif kind == "memory_scale":
                normal(p, 0.0, 1.0)
            elif ".conv." in name:
                normal(p, 0.0, 0.5)
            elif ".ln_" in name:
                normal(p, 1.0, 0.2)
            else:
                normal(p, 0.0, 0.2)


def draw_batches(args, generator):
    """inputs, targets (steps,B,T) int32. The first batch contains the lowest and the highest id; `masked` targets of
    each batch are -1."""
    shape = (STEPS, args.batch, args.seq)
    inputs = torch.randint(args.vocab_size, shape, generator=generator, dtype=torch.int32)
    targets = torch.randint(args.vocab_size, shape, generator=generator, dtype=torch.int32)
    inputs[0, 0, 0], targets[0, 0, 0] = args.vocab_size - 1, args.vocab_size - 1
    inputs[0, -1, -1], targets[0, -1, -1] = 0, 0
    for step in targets:
        step.view(-1)[torch.randperm(step.numel(), generator=generator)[: args.masked]] = -1
    return inputs, targets


def compute_expected(model, inputs, targets, optimizer, hyper):
    """The tensors of NAME.expect, in order. Trains the model in float64 on the batches."""
    model.double()
    attn = model.transformer.h[0].attn
    layer0 = {}
    hook = attn.register_forward_hook(lambda module, args, out: layer0.update(tssa_in=args[0], tssa_out=out))
    optimizers = make_optimizers(model, optimizer, hyper)
    expected = {"inputs": inputs, "targets": targets}
    losses, norms = [], []
    for step, (x, y) in enumerate(zip(inputs.long(), targets.long())):
        model.zero_grad()
        logits, loss = model(x, y)
        loss.backward()
        if step == 0:
            hook.remove()
            expected["logits"] = logits.detach()
            expected |= {f"grad.{name}": p.grad.clone() for name, p in model.named_parameters()}
            z = attn.project(layer0["tssa_in"])
            layer0["pi"] = attn.membership(z.square())
            if model.config.conv:
                layer0["w"] = z.transpose(1, 2).flatten(2)
            expected |= {f"layer0.{name}": tensor.detach() for name, tensor in layer0.items()}
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), hyper["grad_clip"], foreach=False))
        for each in optimizers:
            each.step()
    expected |= {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    return expected | {f"after.{name}": p.detach() for name, p in model.named_parameters()}


def make(stem, case):
    defaults = {"bias": False, "conv": 0, "memory": 0, "positions": "learned", "bigrams": 0, "masked": 0,
                "optimizer": "adamw"}
    args = argparse.Namespace(**(defaults | HYPER | case))
    generator = torch.Generator().manual_seed(args.seed)
    model = Tost(TostConfig(args.layers, args.heads, args.channels, args.block_size, args.vocab_size,
                            args.bias, conv=args.conv, memory=args.memory, positions=args.positions,
                            bigrams=args.bigrams))
    randomize(model, generator)
    inputs, targets = draw_batches(args, generator)
    hyper = {key: getattr(args, key) for key in HYPER}
    metadata = model.config.metadata() | {"B": str(args.batch), "T": str(args.seq), "steps": str(STEPS)}
    metadata |= {key: str(value) for key, value in hyper.items() if key != "momentum" or args.optimizer == "muon"}
    if args.optimizer != "adamw":
        metadata["optimizer"] = args.optimizer
    write_safetensors(f"{stem}.params.safetensors", model.state_dict(), metadata)
    expected = compute_expected(model, inputs, targets, args.optimizer, hyper)
    write_safetensors(f"{stem}.expect.safetensors", expected, metadata)
    size = sum(Path(f"{stem}.{part}.safetensors").stat().st_size for part in ("params", "expect"))
    print(f"{stem}: {size} bytes, losses {expected['losses'].tolist()}, "
          f"grad_norms {expected['grad_norms'].tolist()}, grad_clip {args.grad_clip}")


def worst_error(got, expected):
    """The largest difference relative to the largest expected value; absolute if all are zero, inf for NaN."""
    scale = expected.abs().max().item()
    error = (got - expected).abs().max().item() / (scale if scale > 0 else 1.0)
    return math.inf if math.isnan(error) else error


def verify_pair(params):
    """Recomputes one pair and prints the worst relative error. Returns True if all are within TOLERANCE."""
    with safe_open(params.with_name(params.name.replace(".params.", ".expect.")), framework="pt") as file:
        metadata = file.metadata()
        stored = {name: file.get_tensor(name) for name in file.keys()}
    computed = compute_expected(Tost.from_checkpoint(params), stored["inputs"], stored["targets"],
                                metadata.get("optimizer", "adamw"),
                                {key: float(metadata.get(key, HYPER[key])) for key in HYPER})
    mismatched = sorted(computed.keys() ^ stored.keys())
    mismatched += [name for name in computed.keys() & stored.keys()
                   if computed[name].shape != stored[name].shape or computed[name].dtype != stored[name].dtype]
    errors = [(worst_error(computed[name], stored[name]), name) for name in computed.keys() - set(mismatched)]
    worst, name = max(errors, default=(0.0, "none"))
    good = not mismatched and worst <= TOLERANCE
    print(f"{'ok  ' if good else 'FAIL'} {params.with_name(params.name.split('.')[0])}  {len(computed)} tensors, "
          f"largest error {worst:.1e} in {name}")
    for name in mismatched:
        print(f"     {name}: missing on one side, or of another shape or dtype")
    return good


def verify(folders):
    pairs = [params for folder in folders for params in sorted(folder.glob("*.params.safetensors"))]
    if not pairs:
        sys.exit(f"--verify: no *.params.safetensors in {', '.join(map(str, folders))}")
    results = [verify_pair(params) for params in pairs]
    print(f"{sum(results)} of {len(results)} agree within {TOLERANCE:g}, relative to each tensor's largest value")
    return all(results)


def main():
    args = parser.parse_args()
    torch.set_num_threads(1)  # for the same order of summation on every machine
    if args.verify:
        return 0 if verify(args.folders) else 1
    for folder in args.folders:
        folder.mkdir(parents=True, exist_ok=True)
        for name, case in CASES.items():
            make(folder / name, case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
