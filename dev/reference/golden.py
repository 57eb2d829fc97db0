"""Golden files: small models with every parameter away from its initial value, and the float64 truth.

    golden.py NAME --out DIR [sizes and hyper-parameters]
        writes DIR/NAME.params.safetensors and DIR/NAME.expect.safetensors
    golden.py --verify DIR…
        recomputes every pair found there; exit status 1 on disagreement

NAME.params holds the weights in float32 under the published names; the config and the hyper-parameters
stand in its __metadata__. NAME.expect holds, in float64 (ids in int32):
    inputs, targets     (steps,B,T)     one batch a step; targets of -1 do not count
    logits              (B,T,V)         of step 1
    grad.PARAMETER                      of step 1, before clipping
    losses, grad_norms  (steps)         norms before clipping
    after.PARAMETER                     after the last step: AdamW with decoupled decay and bias correction
                                        at a constant lr, gradients scaled by
                                        min(1, grad_clip/(norm + 1e-6))
    layer0.tssa_in, layer0.tssa_out     (B,T,C) ln_1's output and c_proj's, of layer 0 at step 1
    layer0.pi                           (B,nh,T) the membership there

The cases in dev/test/golden were made from the repository's root, with the versions in
dev/requirements.txt, by
    G="python dev/reference/golden.py --out dev/test/golden"
    $G odd    --layers 2 --heads 3 --channels 15 --block-size 19 --vocab-size 257 --batch 2 --seq 13 \\
              --masked 5 --seed 1
    $G biased --layers 1 --heads 2 --channels 12 --block-size 9 --vocab-size 33 --bias 1 --batch 3 --seq 9 \\
              --lr 3e-3 --weight-decay 0.3 --grad-clip 100 --seed 2
    $G one    --layers 1 --heads 1 --channels 6 --block-size 4 --vocab-size 7 --batch 2 --seq 1 \\
              --lr 1e-2 --weight-decay 0 --beta1 0.8 --beta2 0.99 --eps 1e-6 --grad-clip 0.25 --seed 3
    $G long   --layers 1 --heads 2 --channels 8 --block-size 300 --vocab-size 11 --batch 1 --seq 300 \\
              --lr 6e-4 --weight-decay 0.01 --grad-clip 0.5 --seed 4
and cover: sizes that no vector width divides, T < block_size and masked targets; biases and no clipping;
a single token and a single head; a sequence over the edges of any blocked scan. Clipping acts in odd and
one, and does not in biased and long.
"""

import argparse
import math
import sys
from pathlib import Path

import torch
from safetensors import safe_open

from tost import Tost, TostConfig, write_safetensors

# Of the largest value in a tensor: far above float64 rounding, far below any real disagreement.
TOLERANCE = 1e-10
HYPER = {"lr": 1e-3, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "grad_clip": 1.0}


def randomize(model, generator):
    """Moves every parameter to a place where no term of the gradient vanishes or hides behind another."""
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
            elif ".ln_" in name:
                normal(p, 1.0, 0.2)
            else:
                normal(p, 0.0, 0.2)


def draw_batches(args, generator):
    """inputs, targets (steps,B,T) int32. The first batch holds the lowest and the highest id; `masked`
    targets of each batch are -1."""
    shape = (args.steps, args.batch, args.seq)
    inputs = torch.randint(args.vocab_size, shape, generator=generator, dtype=torch.int32)
    targets = torch.randint(args.vocab_size, shape, generator=generator, dtype=torch.int32)
    inputs[0, 0, 0], targets[0, 0, 0] = args.vocab_size - 1, args.vocab_size - 1
    inputs[0, -1, -1], targets[0, -1, -1] = 0, 0
    for step in targets:
        step.view(-1)[torch.randperm(step.numel(), generator=generator)[: args.masked]] = -1
    return inputs, targets


def compute_truth(model, inputs, targets, hyper):
    """Everything that NAME.expect holds, in its order. Trains the model, in float64, on the batches."""
    model.double()
    attn = model.transformer.h[0].attn
    layer0 = {}
    hook = attn.register_forward_hook(lambda module, args, out: layer0.update(tssa_in=args[0], tssa_out=out))
    optimizer = torch.optim.AdamW(model.optimizer_groups(hyper["weight_decay"]), lr=hyper["lr"],
                                  betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"], foreach=False)
    truth = {"inputs": inputs, "targets": targets}
    losses, norms = [], []
    for step, (x, y) in enumerate(zip(inputs.long(), targets.long())):
        optimizer.zero_grad()
        logits, loss = model(x, y)
        loss.backward()
        if step == 0:
            hook.remove()
            truth["logits"] = logits.detach()
            truth |= {f"grad.{name}": p.grad.clone() for name, p in model.named_parameters()}
            layer0["pi"] = attn.membership(attn.project(layer0["tssa_in"]).square())
            truth |= {f"layer0.{name}": tensor.detach() for name, tensor in layer0.items()}
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), hyper["grad_clip"], foreach=False))
        optimizer.step()
    truth |= {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    return truth | {f"after.{name}": p.detach() for name, p in model.named_parameters()}


def make(args):
    generator = torch.Generator().manual_seed(args.seed)
    model = Tost(TostConfig(args.layers, args.heads, args.channels, args.block_size, args.vocab_size,
                            bool(args.bias)))
    randomize(model, generator)
    inputs, targets = draw_batches(args, generator)
    hyper = {key: getattr(args, key) for key in HYPER}
    metadata = model.config.metadata() | {"B": str(args.batch), "T": str(args.seq), "steps": str(args.steps)}
    metadata |= {key: str(value) for key, value in hyper.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / args.name
    write_safetensors(f"{stem}.params.safetensors", model.state_dict(), metadata)
    truth = compute_truth(model, inputs, targets, hyper)
    write_safetensors(f"{stem}.expect.safetensors", truth, metadata)
    size = sum(Path(f"{stem}.{part}.safetensors").stat().st_size for part in ("params", "expect"))
    print(f"{stem}: {size} bytes, losses {truth['losses'].tolist()}, "
          f"grad_norms {truth['grad_norms'].tolist()}, grad_clip {args.grad_clip}")


def worst_error(got, want):
    """The largest difference, as a share of the largest wanted value; of a tensor of zeros, as it is.
    NaN counts as infinite."""
    scale = want.abs().max().item()
    error = (got - want).abs().max().item() / (scale if scale > 0 else 1.0)
    return math.inf if math.isnan(error) else error


def verify_pair(params):
    """Recomputes one pair and prints its worst relative error a kind of tensor. Returns whether all is
    within TOLERANCE."""
    expect_path = params.with_name(params.name.replace(".params.", ".expect."))
    with safe_open(expect_path, framework="pt") as file:
        metadata = file.metadata()
        expect = {name: file.get_tensor(name) for name in file.keys()}
    truth = compute_truth(Tost.from_checkpoint(params), expect["inputs"], expect["targets"],
                          {key: float(metadata[key]) for key in HYPER})
    strangers = sorted(truth.keys() ^ expect.keys())
    strangers += [name for name in truth.keys() & expect.keys()
                  if truth[name].shape != expect[name].shape or truth[name].dtype != expect[name].dtype]
    worst = {}  # kind -> (error, name): grad. and after. by parameter, the rest one by one
    for name in truth.keys() - set(strangers) - {"inputs", "targets"}:
        kind = name.split(".")[0] if name.startswith(("grad.", "after.")) else name
        worst[kind] = max(worst.get(kind, (-1.0, "")), (worst_error(truth[name], expect[name]), name))
    good = not strangers and all(error <= TOLERANCE for error, _ in worst.values())
    print(f"{'ok  ' if good else 'FAIL'} {params.with_name(params.name.split('.')[0])}  {len(truth)} tensors")
    for name in strangers:
        print(f"     {name}: stands on one side only, or with another shape or dtype")
    for kind in sorted(worst):
        error, name = worst[kind]
        print(f"     {kind:16} {error:8.1e}{'  ' + name if kind != name else ''}")
    return good


def verify(folders):
    pairs = [params for folder in folders for params in sorted(folder.glob("*.params.safetensors"))]
    if not pairs:
        sys.exit(f"--verify: no *.params.safetensors in {', '.join(map(str, folders))}")
    results = [verify_pair(params) for params in pairs]
    print(f"{sum(results)} of {len(results)} agree to {TOLERANCE:g} of each tensor's largest value")
    return all(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="name of the case to make")
    parser.add_argument("--verify", nargs="+", type=Path, metavar="DIR",
                        help="recompute the pairs in these folders")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write the pair to")
    for option, default in (("layers", 1), ("heads", 2), ("channels", 16), ("block-size", 8),
                            ("vocab-size", 61), ("bias", 0), ("batch", 1), ("seq", 8), ("steps", 3),
                            ("seed", 1), ("masked", 0)):
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    for option, default in HYPER.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=float, default=default,
                            help=f"default {default:g}")
    args = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation on every machine
    if args.verify:
        return 0 if verify(args.verify) else 1
    if args.name is None or args.out is None:
        parser.error("give a NAME and --out DIR, or --verify DIR")
    make(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
