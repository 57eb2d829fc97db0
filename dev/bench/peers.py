"""Measures the baselines of the trainer: ToST and GPT-2 in PyTorch, and tiktoken.

    peers.py [SECTION...] [--threads N] [--text FILE --vocab vocab.bpe] [--model tost|gpt2] [--device cuda] [--seq T]

Sections: train, sample, tiktoken (the default: about a minute on two idle cores), and train_bf16 (autocast), compiled
and compiled_bf16 (torch.compile; need a C++ compiler and a few minutes). The models have the size of tost-base, unless
--sizes gives another; gpt2 is dev/reference/gpt2.py. Prints `key value unit` lines, or `skipped: SECTION: reason` if a
package, a file or memory is missing. Each value is the median of --runs runs after a warm-up.
PyTorch's threads spin while they wait, so other programs on the same cores slow it down disproportionately.
"""

import os
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("plot", "reference")]

from cli import option_parser

SIZES, TOY = (12, 12, 768, 50304), (2, 2, 32, 257)   # layers, heads, channels, vocabulary
SAMPLE_POSITIONS = (10, 128, 500, 1000)
TEXT_BYTES = 8 << 20          # how much of --text is used


class Skip(Exception):
    """Raised with the reason if a section cannot run."""


def report(key, value, unit):
    print(f"{key} {value:.6g} {unit}", flush=True)


def median_seconds(run, runs, warm=1):
    """The median of `runs` runs after the warm-up."""
    seconds = []
    for _ in range(warm + runs):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[warm:])


def load_torch(args):
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        raise Skip("PyTorch finds no GPU")
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.device == "cuda":
        torch.set_float32_matmul_precision("high")
    return torch


def build(args):
    from gpt2 import Gpt2
    from tost import Tost, TostConfig

    layers, heads, channels, vocab = args.sizes
    sizes = layers, heads, channels, args.seq, vocab
    return (Gpt2(*sizes) if args.model == "gpt2" else Tost(TostConfig(*sizes))).to(args.device)


def flops_per_token(args):
    """FLOPs of forward and backward: 6 per weight of a matrix product, plus causal attention (half of the T × T
    products) or, as in tost/flops.h, TSSA."""
    layers, heads, channels, vocab = args.sizes
    weights = layers * (12 if args.model == "gpt2" else 10) * channels**2 + vocab * channels
    attention = 6 * channels * args.seq if args.model == "gpt2" else 3 * (10 * channels + 8 * heads)
    return 6 * weights + layers * attention


def training_step(args, torch, plain, model, rows, bf16=False):
    """A function that does one training step: forward, backward, gradient clipping, fused AdamW. model: plain, compiled
    or not."""
    optimizer = torch.optim.AdamW(plain.optimizer_groups(0.01), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    vocab = args.sizes[3]
    x, y = torch.randint(vocab, (2, rows, args.seq), device=args.device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(args.device, torch.bfloat16, enabled=bf16):
            loss = model(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        return loss.item()   # waits for the device

    return step


def train(args, key="train", compiled=False, bf16=False):
    torch = load_torch(args)
    model = build(args)
    rows = max(1, args.tokens // args.seq)
    step = training_step(args, torch, model, torch.compile(model) if compiled else model, rows, bf16)
    try:
        seconds = median_seconds(step, args.runs, warm=3 if args.device == "cuda" else 1)
    except torch.cuda.OutOfMemoryError as error:
        raise Skip(str(error).splitlines()[0]) from error
    rate = rows * args.seq / seconds
    report(f"{key}_tokens_per_s", rate, "tokens/s")
    report(f"{key}_step", seconds * 1e3, "ms")
    report(f"{key}_model_flops", rate * flops_per_token(args) * 1e-12, "TFLOP/s")
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else \
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report(f"{key}_peak_memory", peak / 2**20, "MiB")


def sample(args):
    """Greedy sampling in float32. Each token recomputes the whole prefix, but only the last logits."""
    torch = load_torch(args)
    if args.model != "tost":
        raise Skip("only with --model tost")
    model = build(args).eval()
    for position in SAMPLE_POSITIONS:
        idx = torch.randint(model.config.vocab_size, (1, position))
        with torch.inference_mode():
            seconds = median_seconds(lambda: model(idx, last_only=True)[0].argmax(-1), args.runs)
        report(f"sample_{position}_tokens_per_s", 1 / seconds, "tokens/s")


def bench_tiktoken(args):
    """Encodes the start of --text with GPT-2's vocabulary: in one call on one core, and in pieces on all cores."""
    from gpt2_encoding import gpt2_encoding

    if args.text is None or args.vocab is None:
        raise Skip("give --text FILE and --vocab vocab.bpe")
    encoding = gpt2_encoding(args.vocab)
    with open(args.text, "rb") as file:
        text = file.read(TEXT_BYTES).decode("utf-8", errors="replace")
    megabytes = len(text.encode()) / 1e6
    pieces = [text[i : i + 65536] for i in range(0, len(text), 65536)]
    report("tiktoken_text", megabytes, "MB")
    report("tiktoken_tokens", len(encoding.encode_ordinary(text)), "tokens")
    report("tiktoken_1_thread", megabytes / median_seconds(lambda: encoding.encode_ordinary(text), args.runs), "MB/s")
    batch = median_seconds(lambda: encoding.encode_ordinary_batch(pieces, num_threads=args.threads), args.runs)
    report("tiktoken_all_threads", megabytes / batch, "MB/s")


SECTIONS = {
    "train": train,
    "sample": sample,
    "tiktoken": bench_tiktoken,
    "train_bf16": lambda args: train(args, "train_bf16", bf16=True),
    "compiled": lambda args: train(args, "compiled", compiled=True),
    "compiled_bf16": lambda args: train(args, "compiled_bf16", compiled=True, bf16=True),
}
DEFAULT = ("train", "sample", "tiktoken")


def main():
    cores = len(os.sched_getaffinity(0))
    parser = option_parser(__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--threads", type=int, default=cores, help=f"default {cores}, all cores")
    parser.add_argument("--model", choices=("tost", "gpt2"), default="tost", help="default tost")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")
    parser.add_argument("--seq", type=int, default=1024, metavar="T", help="sequence length (default 1024)")
    parser.add_argument("--tokens", type=int, default=1024, metavar="N", help="of a training step (default 1024)")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="timed runs (default 3)")
    parser.add_argument("--sizes", type=int, nargs=4, default=SIZES, metavar=("L", "H", "C", "V"),
                        help="layers, heads, channels, vocabulary (default: those of tost-base)")
    parser.add_argument("--toy", action="store_const", dest="sizes", const=TOY,
                        help="a model of a few thousand parameters")
    parser.add_argument("--text", type=Path, metavar="FILE", help="plain UTF-8 text for tiktoken")
    parser.add_argument("--vocab", type=Path, metavar="FILE", help="GPT-2's vocab.bpe for tiktoken")
    args = parser.parse_args()
    unknown = set(args.sections) - SECTIONS.keys()
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; choose from {', '.join(SECTIONS)}")
    report("threads", args.threads, "threads")
    report("load_before", os.getloadavg()[0], "processes")  # 1 or more: the results are not reliable
    for name in args.sections or DEFAULT:
        try:
            SECTIONS[name](args)
        except (Skip, ImportError) as reason:
            print(f"skipped: {name}: {reason}", flush=True)


if __name__ == "__main__":
    main()
