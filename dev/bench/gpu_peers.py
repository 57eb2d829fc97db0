"""An update of a model in PyTorch: bf16 autocast, torch.compile, fused AdamW, gradient clipping. What gpu.py
sets beside the trainer; one process a model and length, so that each has its own memory and time limit.

    gpu_peers.py tost|gpt2 [--seq T] [--tokens N] [--updates N] [--device cuda|cpu] [--eager] [--toy]

tost is the model of dev/reference at the size of tost-base, gpt2 a GPT-2 of that size (gpt2.py). Tokens are
random. Prints `key value unit` lines: the median over the updates after three that do not count, and the
peak of allocated memory. --toy shrinks the model, to see on a CPU that this runs. Where memory does not
suffice it says `skipped: …`.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

import torch

from gpt2 import Gpt2
from tost import Tost, TostConfig

WARM = 3
SIZES, TOY = (12, 12, 768, 50304), (2, 2, 32, 257)   # layers, heads, channels, vocabulary


def build(name, sizes, seq):
    layers, heads, channels, vocab = sizes
    if name == "gpt2":
        return Gpt2(layers, heads, channels, seq, vocab)
    return Tost(TostConfig(layers, heads, channels, seq, vocab))


def flops_per_token(name, sizes, seq):
    """Of forward and backward: 6 a weight of a product, and what causal attention computes, half of the square."""
    layers, heads, channels, vocab = sizes
    weights = layers * (12 if name == "gpt2" else 10) * channels**2 + vocab * channels
    attention = 6 * layers * channels * seq if name == "gpt2" else 0
    return 6 * weights + attention


def measure(args):
    sizes, device = TOY if args.toy else SIZES, torch.device(args.device)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = build(args.model, sizes, args.seq).to(device)
    forward = model if args.eager else torch.compile(model)
    optimizer = torch.optim.AdamW(model.optimizer_groups(0.01), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    rows = args.tokens // args.seq
    x, y = torch.randint(sizes[3], (2, rows, args.seq), device=device)

    def update():
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = forward(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()   # waits for the device

    seconds = []
    for _ in range(WARM + args.updates):
        start = time.perf_counter()
        loss = update()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[WARM:])
    rate = rows * args.seq / median
    print(f"first_update {seconds[0]:.6g} s")
    print(f"tokens_per_s {rate:.6g} tokens/s")
    print(f"update {median * 1e3:.6g} ms")
    print(f"model_flops {rate * flops_per_token(args.model, sizes, args.seq) * 1e-12:.6g} TFLOP/s")
    print(f"last_loss {loss:.6g} nats")
    if device.type == "cuda":
        print(f"memory {torch.cuda.max_memory_allocated() / 2**30:.6g} GiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("tost", "gpt2"))
    parser.add_argument("--seq", type=int, default=1024, metavar="T")
    parser.add_argument("--tokens", type=int, default=65536, metavar="N", help="of an update; a multiple of T")
    parser.add_argument("--updates", type=int, default=10, metavar="N", help="that count")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--toy", action="store_true", help="a model of a few thousand parameters")
    args = parser.parse_args()
    if args.updates < 1 or args.seq < 1 or args.tokens < args.seq or args.tokens % args.seq:
        parser.error("--tokens must be a multiple of --seq, and --updates at least 1")
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: this PyTorch finds no GPU")
        return
    try:
        measure(args)
    except torch.cuda.OutOfMemoryError as error:
        print(f"skipped: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
