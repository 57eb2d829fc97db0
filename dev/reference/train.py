"""Trains the PyTorch model exactly like the trainer, as a reference for loss curves.

    train.py --init MODEL --like RUN --out DIR
    train.py --init MODEL --data GLOB --steps N --lr X … --out DIR

It uses the same initial weights, shards, data order, schedule, clipping and optimizers, and writes DIR/log.csv with the
same columns, so that dev/plot/loss.py can overlay both. Options have the trainer's names. --like takes missing options
from a trainer run; paths are as given to that run, so use the same working directory. To start both from the same
weights:

    ./train_gpt_tost --steps 0 --out out/start … && ./train_gpt_tost --init out/start --out out/c …
    python3 dev/reference/train.py --init out/start --like out/c --out out/torch
    python3 dev/plot/loss.py out/c out/torch --difference --out loss.png

Losses of the two agree to 1e-6 at first; dev/test/cli/exchange.py requires 1e-4 over 24 steps of a small model. Float32
runs diverge sooner where the first steps are unstable. Compare the first steps, or smoothed curves.

With --attention softmax, it trains GPT-2 instead: the sizes of --init, initial weights from --seed, and 3 C instead of
4 C channels in the MLP, so that it has as many parameters as ToST. With --optimizer muon, the fused projection to
query, key and value is three matrices. --by-position writes the validation loss by position, for dev/plot/position.py,
and the loss on rare pairs of tokens, new or repeated in the window.

The final weights of ToST are in DIR/model.safetensors. Needs Python 3.11 or later, torch, numpy and safetensors.
"""

import contextlib
import json
import math
import shutil
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))

from cli import command, need, option_parser, run
from runs import COLUMNS

REQUIRED = object()
# name: type, default without --like, help
OPTIONS = {
    "data": (str, REQUIRED, "training shards, a quoted glob"),
    "val-data": (str, None, "validation shards"),
    "order": (str, "shuffled", "sequential or shuffled"),
    "steps": (int, REQUIRED, "optimizer steps"),
    "batch": (int, 1, "sequences per micro-batch"),
    "seq": (int, None, "sequence length in tokens (default: the block size)"),
    "total-batch": (int, None, "tokens per step (default: batch × seq)"),
    "lr": (float, REQUIRED, "peak learning rate"),
    "warmup": (int, 0, "warm-up steps"),
    "min-lr-frac": (float, 0.1, "final learning rate as a fraction of the peak"),
    "weight-decay": (float, 0.1, "for embeddings and Linear weights; of bigrams, 4 times as much"),
    "optimizer": (str, "adamw", "adamw, or muon for the weights of Linear in the layers, with Rowwise for bigrams"),
    "momentum": (float, 0.95, "Muon"),
    "beta1": (float, 0.9, "AdamW"),
    "beta2": (float, 0.95, "AdamW and Rowwise"),
    "eps": (float, 1e-8, "AdamW and Rowwise"),
    "grad-clip": (float, 1.0, "maximum gradient norm; 0: no clipping"),
    "seed": (int, 1337, "random seed of the data order, and of GPT-2's initial weights"),
    "val-every": (int, 0, "steps between validations; 0: never"),
    "val-windows": (int, 480, "sequences per validation, spread evenly over --val-data; 0: all"),
}

parser = option_parser(__doc__)
parser.add_argument("--init", required=True, metavar="MODEL", help="initial weights, as for --model")
parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for log.csv and the weights")
parser.add_argument("--like", metavar="RUN", help="trainer run that provides the missing options")
parser.add_argument("--overwrite", action="store_true", help="replace an existing log.csv in --out")
parser.add_argument("--device", default="cpu", help="cpu (default), cuda, …")
parser.add_argument("--dtype", choices=("fp32", "fp64", "bf16"), default="fp32",
                    help="fp32 (default), fp64, or bf16 with autocast")
parser.add_argument("--attention", choices=("tssa", "softmax"), default="tssa",
                    help="tssa (default), or softmax: GPT-2 of the same size")
parser.add_argument("--compile", action="store_true", help="use torch.compile: faster, needs a C++ compiler")
parser.add_argument("--by-position", type=Path, metavar="JSON",
                    help="write the final loss on the whole windows of --val-data by position, in the format of "
                         "eval --by-position --json, and on rare pairs of tokens")
parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 (default): chosen by torch")
parser.add_argument("--quiet", action="store_true", help="print nothing on stdout")
for name, (kind, default, text) in OPTIONS.items():
    shown = f" (default {default})" if default not in (REQUIRED, None) else ""
    parser.add_argument(f"--{name}", type=kind, help=text + shown)
if __name__ == "__main__":
    parser.parse_args()   # --help does not need the packages below
    need("torch", "safetensors", "numpy")

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open

from gpt2 import Gpt2
from shards import Shards
from tost import BIGRAM, Rowwise, Tost, find_model

# Of the recall measure: see Trainer.recall
RARE, RARE_TOKENS, DISTANCES = 3, 20_000_000, (0, 1, 11, 51)


def complete(args, block_size):
    """Sets missing options from --like or the defaults, and checks all options. Returns the tokenizer entries of
    --like's __metadata__."""
    metadata = {}
    if args.like:
        with safe_open(find_model(args.like), framework="pt") as file:
            metadata = file.metadata() or {}
    saved = {key.removeprefix("option."): value for key, value in metadata.items() if key.startswith("option.")}
    if args.like and not saved:
        raise ValueError(f"--like {args.like}: no training options in this checkpoint")
    for name, (kind, default, _) in OPTIONS.items():
        field = name.replace("-", "_")
        if getattr(args, field) is None:
            if name not in saved and default is REQUIRED:
                raise ValueError(f"--{name}: missing; give it or --like RUN")
            setattr(args, field, kind(saved[name]) if name in saved else default)
    args.seq = args.seq or block_size
    args.total_batch = args.total_batch or args.batch * args.seq
    if args.seq > block_size:
        raise ValueError(f"--seq {args.seq}: longer than the block size {block_size} of {args.init}")
    if args.total_batch % (args.batch * args.seq):
        raise ValueError(f"--total-batch {args.total_batch}: not a multiple of batch {args.batch} × seq {args.seq}")
    if args.optimizer not in ("adamw", "muon"):
        raise ValueError(f"--optimizer {args.optimizer}: give adamw or muon")
    if args.order not in ("sequential", "shuffled"):
        raise ValueError(f"--order {args.order}: give sequential or shuffled")
    return {key: metadata[key] for key in ("tokenizer", "tokenizer_hash") if key in metadata}


def schedule_lr(step, args):
    """Learning rate of a step, counted from 0: linear warm-up, then cosine decay; see tost/schedule.h."""
    low = args.min_lr_frac * args.lr
    if step >= args.steps:
        return low
    if step < args.warmup:
        return args.lr * step / args.warmup
    done = (step - args.warmup) / (args.steps - args.warmup)
    return low + (args.lr - low) * 0.5 * (1 + math.cos(math.pi * done))


class Trainer:
    def __init__(self, args):
        self.model = Tost.from_checkpoint(args.init)
        self.tokenizer = complete(args, self.model.config.block_size)
        self.args = args
        config = self.model.config
        V = config.vocab_size
        if args.attention == "softmax":
            if config.positions == "none":
                raise ValueError(f"{args.init}: no positions, but --attention softmax needs them")
            torch.manual_seed(args.seed)
            self.model = Gpt2(config.n_layer, config.n_head, config.n_embd, config.block_size, V, 3 * config.n_embd)
        self.train = Shards(args.data, args.seq, V, args.order, args.seed)
        if args.by_position and not args.val_data:
            raise ValueError("--by-position: needs --val-data")
        self.val = Shards(args.val_data, args.seq, V, "sequential") if args.val_data else None
        self.model.to(args.device, torch.float64 if args.dtype == "fp64" else torch.float32)
        self.optimizers = self.make_optimizers()
        self.forward = torch.compile(self.model, dynamic=False) if args.compile else self.model

    def make_optimizers(self):
        """AdamW, and with --optimizer muon Rowwise for bigrams and Muon for self.matrices, the matrices of each weight
        of a Linear in the layers. torch.optim.Muon iterates in bfloat16; train_gpt_tost does so only with --dtype bf16.
        A fused projection is split into several matrices, which are views of the weight; step gives each its part of
        the gradient."""
        args, groups = self.args, self.model.optimizer_groups(self.args.weight_decay)
        linear = [module.weight for module in self.model.modules() if isinstance(module, torch.nn.Linear)]
        muon = {id(weight) for weight in linear if args.optimizer == "muon"}
        table = [p for name, p in self.model.named_parameters() if name == BIGRAM and muon]
        self.matrices = [(weight, weight.detach().split(getattr(weight, "matrix_rows", len(weight))))
                         for weight in linear if id(weight) in muon]
        muon |= {id(p) for p in table}
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) not in muon]
        groups = [group for group in groups if group["params"]]
        optimizers = [torch.optim.AdamW(groups, lr=args.lr, betas=(args.beta1, args.beta2), eps=args.eps)]
        if muon:
            parts = [part for _, parts in self.matrices for part in parts]
            optimizers.append(torch.optim.Muon(parts, lr=args.lr, momentum=args.momentum,
                                               weight_decay=args.weight_decay, adjust_lr_fn="match_rms_adamw"))
        if table:
            optimizers.append(Rowwise(table, args.lr, args.beta2, args.eps, 4 * args.weight_decay))
        return optimizers

    def predict(self, shards, samples):
        """Logits of the samples of these numbers, their mean loss, and their targets (samples,T)."""
        x, y = (torch.from_numpy(ids).to(self.args.device) for ids in shards.batch(samples))
        bf16 = torch.autocast(torch.device(self.args.device).type, torch.bfloat16)
        with bf16 if self.args.dtype == "bf16" else contextlib.nullcontext():
            return *self.forward(x, y), y

    def loss(self, shards, samples):
        return self.predict(shards, samples)[1]

    def step(self, step):
        """One optimizer step. Returns loss, learning rate and gradient norm before clipping."""
        args = self.args
        rows, total = args.total_batch // args.seq, 0.0
        self.model.zero_grad()
        for first in range(step * rows, (step + 1) * rows, args.batch):
            loss = self.loss(self.train, range(first, first + args.batch)) * (args.batch / rows)
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), args.grad_clip or math.inf).item()
        if not math.isfinite(total + norm):
            raise ValueError(f"step {step + 1}: loss {total:g}, gradient norm {norm:g}: not finite; "
                             "try a lower --lr")
        lr = schedule_lr(step, args)
        for weight, parts in self.matrices:
            for part, grad in zip(parts, weight.grad.split(len(parts[0]))):
                part.grad = grad
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        return total, lr, norm

    @torch.no_grad()
    def validate(self):
        n = min(self.args.val_windows or self.val.samples, self.val.samples)
        windows = [i * self.val.samples // n for i in range(n)]
        batches = [windows[i : i + self.args.batch] for i in range(0, n, self.args.batch)]
        return sum(self.loss(self.val, batch).item() * len(batch) for batch in batches) / n

    @torch.no_grad()
    def by_position(self):
        """The loss on all whole windows of --val-data in bins of positions: 1, 2, 3-4, 5-8, …; and on rare
        pairs of tokens, new or repeated in the window."""
        B, T = self.args.batch, self.args.seq
        losses = []  # (windows, T)
        for first in range(0, self.val.samples, B):
            logits, _, y = self.predict(self.val, range(first, min(first + B, self.val.samples)))
            losses.append(F.cross_entropy(logits.float().transpose(1, 2), y, reduction="none").double())
        losses = torch.cat(losses)
        ends = [0] + [1 << k for k in range(T.bit_length()) if 1 << k < T] + [T]
        bins = []
        for start, end in zip(ends, ends[1:]):
            means = losses[:, start:end].mean(1)
            bins.append({"first": start + 1, "last": end, "loss": means.mean().item(),
                         "tokens": len(means) * (end - start),
                         "loss_95": 1.96 * means.std().item() / math.sqrt(len(means)) if len(means) > 1 else None})
        return {"model": str(self.args.out), "position": bins, "recall": self.recall(losses.cpu().numpy())}

    def recall(self, losses):
        """Mean loss of the targets that complete a rare pair (token, next token), by the distance to the last
        occurrence of the pair in the window; 0: none. losses (windows,T): of all targets. Rare: at most RARE times in
        the first RARE_TOKENS of --data."""
        data = np.concatenate([shard[:RARE_TOKENS] for shard in self.train.shards])[:RARE_TOKENS].astype(np.int64)
        V = self.val.vocab_size
        pairs, counts = np.unique(data[:-1] * V + data[1:], return_counts=True)
        frequent = set(pairs[counts > RARE].tolist())
        found = {first: [] for first in DISTANCES}
        for window, row in enumerate(losses):
            x, y = (ids[0].tolist() for ids in self.val.batch([window]))
            last = {}
            for t, pair in enumerate(zip(x, y)):
                distance = t - last.get(pair, t)
                last[pair] = t
                if pair[0] * V + pair[1] not in frequent:
                    found[max(first for first in DISTANCES if first <= distance)].append(row[t])
        return [{"distance": first, "tokens": len(some), "loss": float(np.mean(some)) if some else None}
                for first, some in found.items()]

    def run(self, log):
        args = self.args
        if self.val and args.val_every:
            print(f"0,0,,{self.validate():.9f},,,,", file=log, flush=True)
        for step in range(args.steps):
            start = time.perf_counter()
            loss, lr, norm = self.step(step)
            seconds = time.perf_counter() - start
            done, val = step + 1, ""
            if self.val and args.val_every and (done % args.val_every == 0 or done == args.steps):
                val = f"{self.validate():.9f}"
            print(f"{done},{done * args.total_batch},{loss:.9f},{val},{lr:.9e},{norm:.9f},"
                  f"{1e3 * seconds:.3f},{args.total_batch / seconds:.1f}", file=log, flush=True)
            if not args.quiet:
                print(f"step {done}/{args.steps}  loss {loss:.6f}  |g| {norm:.4f}  lr {lr:.3e}  "
                      f"{1e3 * seconds:.1f} ms{'  validation ' + val if val else ''}", flush=True)

    def save(self):
        args = self.args
        if args.attention == "tssa":
            extra = {"step": str(args.steps), "tokens": str(args.steps * args.total_batch)}
            self.model.save(args.out / "model.safetensors", extra | self.tokenizer)
            vocabulary = find_model(args.like).parent / "vocab.bpe" if args.like else None
            if vocabulary and vocabulary.is_file():
                shutil.copy(vocabulary, args.out)
        if args.by_position:
            args.by_position.write_text(json.dumps(self.by_position()), encoding="utf-8")


@command(SafetensorError)
def main(arguments):
    args = parser.parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    path = args.out / "log.csv"
    if path.exists() and not args.overwrite:
        raise ValueError(f"--out {args.out}: already has a log.csv; --overwrite replaces it")
    trainer = Trainer(args)
    args.out.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as log:
        print(",".join(COLUMNS), file=log)
        trainer.run(log)
    trainer.save()


if __name__ == "__main__":
    sys.exit(run(main))
