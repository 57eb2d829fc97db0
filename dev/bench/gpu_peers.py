"""Times training steps of a PyTorch model: bf16 autocast, torch.compile, fused AdamW, gradient clipping.
gpu.py compares the trainer with the result; it runs one process per model and length.

    gpu_peers.py tost|gpt2 [--seq T] [--tokens N] [--steps N] [--device cuda|cpu] [--eager] [--toy]

tost is the model in dev/reference at the size of tost-base, gpt2 a GPT-2 of that size (gpt2.py). Tokens are
random. Prints `key value unit` lines: medians over the steps after three warm-up steps, and peak memory; or
`skipped: …` if memory is too small. --toy shrinks the model for a test on a CPU.
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
    """FLOPs of forward and backward: 6 per weight of a matrix product, plus causal attention (half of the T × T
    products) or, as in tost/flops.h, TSSA."""
    layers, heads, channels, vocab = sizes
    weights = layers * (12 if name == "gpt2" else 10) * channels**2 + vocab * channels
    attention = 6 * layers * channels * seq if name == "gpt2" else 3 * layers * (10 * channels + 8 * heads)
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

    def step():
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = forward(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()   # waits for the device

    seconds = []
    for _ in range(WARM + args.steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[WARM:])
    rate = rows * args.seq / median
    print(f"first_step {seconds[0]:.6g} s")
    print(f"tokens_per_s {rate:.6g} tokens/s")
    print(f"step {median * 1e3:.6g} ms")
    print(f"model_flops {rate * flops_per_token(args.model, sizes, args.seq) * 1e-12:.6g} TFLOP/s")
    print(f"last_loss {loss:.6g} nats")
    if device.type == "cuda":
        print(f"memory {torch.cuda.max_memory_allocated() / 2**30:.6g} GiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("tost", "gpt2"))
    parser.add_argument("--seq", type=int, default=1024, metavar="T")
    parser.add_argument("--tokens", type=int, default=65536, metavar="N", help="tokens per step, a multiple of T")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="do not use torch.compile")
    parser.add_argument("--toy", action="store_true", help="a model of a few thousand parameters")
    args = parser.parse_args()
    if args.steps < 1 or args.seq < 1 or args.tokens < args.seq or args.tokens % args.seq:
        parser.error(f"--tokens {args.tokens}, --seq {args.seq}, --steps {args.steps}: give at least 1 step, and a "
                     "multiple of --seq as --tokens")
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU")
        return
    try:
        measure(args)
    except torch.cuda.OutOfMemoryError as error:
        print(f"skipped: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
