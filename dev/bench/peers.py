"""Measures the baselines of the trainer: the same model in PyTorch, and tiktoken.

    peers.py [SECTION...] [--threads N] [--text FILE --vocab vocab.bpe]

Sections: train, sample, sgemm, tiktoken (the default: about a minute on two idle cores), and train_bf16 (autocast),
compiled and compiled_bf16 (torch.compile; need a C++ compiler and a few minutes), and ddp (DistributedDataParallel with
gloo: --threads processes with one thread each, --tokens per step, which are accumulated; minutes). Prints `key value
unit` lines, or `skipped: SECTION: reason` if a package or file is missing. Each value is the median of 3 runs after a warm-up.
PyTorch's threads spin while they wait, so other programs on the same cores slow it down disproportionately.
"""

import argparse
import contextlib
import os
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

RUNS = 3
TRAIN_TOKENS = 1024           # B·T of a training step: one sequence of tost-base's block_size
SAMPLE_POSITIONS = (10, 128, 500, 1000)
SGEMM_SIZE = 4096
TEXT_BYTES = 8 << 20          # how much of --text is used


class Skip(Exception):
    """Raised with the reason if a section cannot run."""


def report(key, value, unit):
    print(f"{key} {value:.6g} {unit}", flush=True)


def median_seconds(run):
    """The median of RUNS runs after a warm-up."""
    seconds = []
    for _ in range(1 + RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def peak_bytes():
    """Peak resident memory of this process. The fallback, getrusage, may include the parent's from before exec."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10


def load_torch(args):
    try:
        import torch
        import tost
    except ImportError as error:
        raise Skip(f"{error} (pip install -r dev/requirements.txt)") from error
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    return torch, tost


def train(args, key="train", compiled=False, bf16=False):
    """Training steps of tost-base in float32 or bf16: forward, backward, gradient clipping, fused AdamW."""
    torch, tost = load_torch(args)
    report(f"{key}_import_memory", peak_bytes() / 2**20, "MiB")
    model = tost.Tost(tost.PRESETS["tost-base"])
    config = model.config
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.optimizer_groups(0.01), lr=6e-4, betas=(0.9, 0.95), eps=1e-8,
                                  fused=True)
    x, y = torch.randint(config.vocab_size, (2, TRAIN_TOKENS // config.block_size, config.block_size))

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = forward(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    seconds = median_seconds(step)
    report(f"{key}_tokens_per_s", TRAIN_TOKENS / seconds, "tokens/s")
    report(f"{key}_step", seconds * 1e3, "ms")
    report(f"{key}_peak_memory", peak_bytes() / 2**20, "MiB")


def ddp_process(rank, args, port, results):
    """One process of ddp. Process 0 puts the median time of a step into results."""
    args.threads, ranks = 1, args.threads
    torch, tost = load_torch(args)
    from torch.nn.parallel import DistributedDataParallel
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    plain = tost.Tost(tost.PRESETS["tost-base"])
    config = plain.config
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(plain.optimizer_groups(0.01), lr=6e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    micro_batches = max(1, args.tokens // (ranks * config.block_size))
    x, y = torch.randint(config.vocab_size, (2, 1, config.block_size))

    def step(count):
        optimizer.zero_grad()
        for i in range(count):
            with model.no_sync() if i < count - 1 else contextlib.nullcontext():
                (model(x, y)[1] / count).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()

    step(1)   # warm-up
    seconds = []
    for _ in range(args.runs):
        torch.distributed.barrier()
        start = time.perf_counter()
        step(micro_batches)
        torch.distributed.barrier()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        results.put((statistics.median(seconds), ranks * micro_batches * config.block_size))
    torch.distributed.destroy_process_group()


def ddp(args):
    """Training steps of tost-base on several processes with DistributedDataParallel."""
    load_torch(args)
    import socket
    import torch.multiprocessing as processes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = processes.get_context("spawn").SimpleQueue()
    os.environ["OMP_NUM_THREADS"] = "1"
    processes.spawn(ddp_process, (args, port, results), nprocs=args.threads)
    seconds, tokens = results.get()
    report("ddp_tokens_per_s", tokens / seconds, "tokens/s")
    report("ddp_step", seconds * 1e3, "ms")


def sample(args):
    """Greedy sampling with tost-base in float32. Each token recomputes the whole prefix, but only the last logits."""
    torch, tost = load_torch(args)
    model = tost.Tost(tost.PRESETS["tost-base"]).eval()
    for position in SAMPLE_POSITIONS:
        idx = torch.randint(model.config.vocab_size, (1, position))

        def token():
            nonlocal idx
            logits, _ = model(idx, last_only=True)
            idx = torch.cat((idx, logits[:, -1].argmax(-1, keepdim=True)), dim=1)

        with torch.inference_mode():
            report(f"sample_{position}_tokens_per_s", 1 / median_seconds(token), "tokens/s")


def sgemm(args):
    torch, _ = load_torch(args)
    n = SGEMM_SIZE
    a, b, c = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    report("sgemm", 2 * n**3 / median_seconds(lambda: torch.mm(a, b, out=c)) / 1e9, "GFLOP/s")


def bench_tiktoken(args):
    """Encodes the start of --text with GPT-2's vocabulary: in one call on one core, and in pieces on all cores."""
    try:
        from gpt2_encoding import gpt2_encoding
    except ImportError as error:
        raise Skip(f"{error} (pip install -r dev/requirements.txt)") from error
    if args.text is None or args.vocab is None:
        raise Skip("give --text FILE and --vocab vocab.bpe")
    encoding = gpt2_encoding(args.vocab)
    with open(args.text, "rb") as file:
        text = file.read(TEXT_BYTES).decode("utf-8", errors="replace")
    megabytes = len(text.encode()) / 1e6
    pieces = [text[i : i + 65536] for i in range(0, len(text), 65536)]
    report("tiktoken_text", megabytes, "MB")
    report("tiktoken_tokens", len(encoding.encode_ordinary(text)), "tokens")
    report("tiktoken_1_thread", megabytes / median_seconds(lambda: encoding.encode_ordinary(text)), "MB/s")
    batch = median_seconds(lambda: encoding.encode_ordinary_batch(pieces, num_threads=args.threads))
    report("tiktoken_all_threads", megabytes / batch, "MB/s")


SECTIONS = {
    "train": train,
    "sample": sample,
    "sgemm": sgemm,
    "tiktoken": bench_tiktoken,
    "ddp": ddp,
    "train_bf16": lambda args: train(args, "train_bf16", bf16=True),
    "compiled": lambda args: train(args, "compiled", compiled=True),
    "compiled_bf16": lambda args: train(args, "compiled_bf16", compiled=True, bf16=True),
}
DEFAULT = ("train", "sample", "sgemm", "tiktoken")


def main():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--threads", type=int, default=cores, help=f"default {cores}, all cores")
    parser.add_argument("--tokens", type=int, default=8192, help="of a step of ddp (default 8192)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"steps of ddp (default {RUNS})")
    parser.add_argument("--text", type=Path, metavar="FILE", help="plain UTF-8 text for tiktoken")
    parser.add_argument("--vocab", type=Path, metavar="FILE", help="GPT-2's vocab.bpe for tiktoken")
    args = parser.parse_args()
    for name in args.sections:
        if name not in SECTIONS:
            parser.error(f"no section {name!r}; choose from {', '.join(SECTIONS)}")
    report("threads", args.threads, "threads")
    if hasattr(os, "getloadavg"):
        report("load_before", os.getloadavg()[0], "processes")  # 1 or more: the results are not reliable
    for name in args.sections or DEFAULT:
        try:
            SECTIONS[name](args)
        except Skip as reason:
            print(f"skipped: {name}: {reason}", flush=True)


if __name__ == "__main__":
    main()
