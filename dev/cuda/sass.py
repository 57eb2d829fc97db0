#!/usr/bin/env python3
"""Warp instructions per kernel, counted in the machine code, beside the bytes that it moves. Needs no GPU.

    sass.py [--write] OBJECT RECORD    OBJECT: train_gpt_tost.o; RECORD: dev/cuda/SASS.md

A multiprocessor issues at most one instruction per cycle on each of its 4 schedulers, so a kernel takes at least
(warp instructions) / (132 · 4 · 1.755 GHz) on an H200, and at least (bytes) / (4.3 TB/s). The larger is its floor.
An instruction counts once per trip of each loop around it, and not at all after the last EXIT. Both sides of a branch
count, unless KERNELS gives a loop a share of a trip.

Without --write, exits with 1 if a kernel has over 5 % more instructions than in RECORD. In both cases, exits with 1 if

- a kernel is in no table of this file, or the number of its loops differs from KERNELS,
- code for any architecture has LDL or STL, loads and stores of registers that were spilled, or LDG.CONSTANT, a load from
  a cache that does not see what other blocks of the launch write; no kernel needs one,
- the __launch_bounds__ of a kernel allow fewer threads than registers.py says it is launched with;

with 77 if cuobjdump is missing or RECORD is of another version of nvcc. The environment variables NVCC and CUOBJDUMP
replace the programs of these names."""
import os
import re
import shutil
import subprocess
import sys

from registers import launch

ARCH, SCHEDULERS, CLOCK, BANDWIDTH, PRODUCTS = "sm_90", 132 * 4, 1.755e9, 4.3e12, 790e12
BANDWIDTH_H100 = 3.0e12   # the rest is as on an H200
# Expected: shares of the issue rate and bandwidth, ms per launch (SASS.md has the reasons); range of a step
ISSUED, STREAMED, LAUNCH, LEAST, MOST = 0.65, 0.85, 3e-3, 0.95, 1.08
GROWTH = 1.05
ROWS, LAYERS, HEADS, C, V, PARAMETERS = 65536, 12, 12, 768, 50304, 110e6   # tost-base, B 64, T 1024
NORMS, MATRICES = 2 * LAYERS + 1, 10 * C * C * LAYERS   # LayerNorms of a pass; elements of Muon's matrices
RUNS = ROWS / 32
SQUARE, CLASSIFIER = 2 * ROWS * C * C, 2 * ROWS * C * V   # FLOPs of products
# name: (FLOPs, expected TFLOP/s, why)
MATMULS = {
    "K = 768": (LAYERS * 12 * SQUARE + CLASSIFIER, 600, "few steps per tile, many bytes of results"),
    "K ≥ 3,072": (LAYERS * 8 * SQUARE + CLASSIFIER, 700, "below 790, because the tiles do not fill the last wave"),
    "gradients of weights": (LAYERS * 10 * SQUARE + CLASSIFIER, 580, "split-K, and sums of its parts in float32"),
}
SEGMENTS = ROWS * 0.75   # of embedding_backward: one per distinct token; the other rows have a common one
# Averages over the 32 runs of a scan. ENDS: groups that a run ends. LEVELS: octal digits of a run's number.
# OF_LEVEL: share of a level's code that runs, since it has a branch for each number of totals. STATELESS: share of the
# column loop's code that runs, since the code for the states of decode and --chunk does not.
ENDS, LEVELS, OF_LEVEL, STATELESS = 1 / 8, (31 + 24) / 32, 0.155, 0.27


def scan_trips(first, warps):
    """Trips of a scan's loops, with inner loops in parentheses: groups that a run ends (polls of a flag; columns;
    levels), sets of 4 levels to wait for (levels; polls of a flag), columns (levels). first: number of the first loop.
    warps: how many of the 12 warps have columns."""
    return {first: ENDS, first + 2: warps / 12, first + 3: 7 / 28, first + 4: 1 / 12, first + 5: LEVELS,
            first + 7: warps / 12 * STATELESS, first + 8: LEVELS * OF_LEVEL / STATELESS}


# name: (mangled name starts with, launches per step, warps per launch, minimum of bytes per step, loops in the code,
# trips by loop). The minimum reads each input once and writes each output once, see the comments at the kernels.
# Loops are in the order of their first instruction, outer before inner; trips not given are 1. "N/load": a loop over
# N global loads of which one trip has several, as counted in the code.
KERNELS = {
    "embedding_forward": ("_Z24embedding_forward_kernel", 1, ROWS * 6, 4 * C * (ROWS + SEGMENTS), 1, {}),
    "residual_layernorm_forward": (
        "_Z33residual_layernorm_forward_kernelI13__nv_bfloat16Li4ELi6E", NORMS, ROWS,
        (12 * C * 2 * LAYERS + 6 * C + 8 * NORMS) * ROWS, 2, {0: 0, 1: 0}),
    # Functions of WHOLE = false do not run. The code of the ticket, which only one warp runs, counts for all 12.
    "tssa_forward": ("_Z19tssa_forward_kernelI13__nv_bfloat16E", LAYERS, RUNS * 12, 4 * C * LAYERS * ROWS, 37,
                     {2: 0, **scan_trips(4, 6), 15: 0, 17: 0, 19: 0, 22: 0, **scan_trips(24, 7), 35: 0}),
    "gelu_forward": ("_Z19gelu_forward_kernelI13__nv_bfloat16", LAYERS, ROWS * 4 * C / 256, 16 * C * LAYERS * ROWS, 2,
                     {0: 0, 1: 0}),
    "cross_entropy": ("_Z20cross_entropy_kernelI13__nv_bfloat16E", 4, ROWS / 4 * 32, 4 * V * ROWS, 4,
                      {0: f"{V / 8192}/load", 1: f"{V / 8192}/load", 2: 0, 3: 0}),
    "layernorm_residual_backward": (
        "_Z34layernorm_residual_backward_kernelI13__nv_bfloat16Li4ELi1ELi2E", NORMS, 528 * 6,
        (18 * C * 2 * LAYERS + 10 * C + 8 * NORMS) * ROWS, 2, {0: ROWS / 2 / 528}),
    "gelu_backward": ("_Z20gelu_backward_kernelI13__nv_bfloat16Lb1E", LAYERS, 440 * 3 * 4, 24 * C * LAYERS * ROWS, 1,
                      {0: f"{2 * ROWS / 440}/load"}),
    "tssa_backward": ("_Z20tssa_backward_kernelI13__nv_bfloat16E", LAYERS, RUNS * 12, 6 * C * LAYERS * ROWS, 44,
                      {3: 8, 4: 0, **scan_trips(6, 7), 17: 0, 19: 0, 20: 3, 21: 0, 25: 8, 26: 0, **scan_trips(28, 6),
                       39: 8, 40: 0, 41: 0}),
    "bias_backward": ("_Z20bias_backward_kernelI13__nv_bfloat16E", 0, 528 * 8, 0, 3, {0: 0, 2: ROWS / 528 / 4}),
    "embedding_segment": ("_Z24embedding_segment_kernel", 1, 4096 * 6, 4 * C * ROWS + 8 * C * SEGMENTS, 3,
                          {0: SEGMENTS / 4096, 2: ROWS / SEGMENTS / 4}),
    "embedding_place": ("_Z22embedding_place_kernel", 1, 1024 * 6, 4 * C * ROWS, 4, {0: 0, 3: 64 / 4}),
    "grad_norm": ("_Z16grad_norm_kernel", 1, PARAMETERS / 2**14 * 8, 4 * PARAMETERS, 3, {0: 0, 1: "16/load", 2: 8}),
    "adamw": ("_Z12adamw_kernelI13__nv_bfloat16E", 1, PARAMETERS / 128, 30 * PARAMETERS, 0, {}),
    # --memory 1, for heads of 64 channels: a block of 8 warps loops over the 34 runs of a half of a head. Of products
    # of 2 x 2, 4 x 2 and 2 x 4 tiles, the warps take 0.5, 1 and 1; one of 2 x 2 tiles of K Kᵀ and of Q is left out.
    # One warp solves the triangular systems.
    "delta_rule_forward": (
        "_Z25delta_rule_forward_kernelI13__nv_bfloat16Li32E", LAYERS, ROWS / 1024 * HEADS * 2 * 8,
        8 * C * LAYERS * ROWS, 19,
        {0: 2, 1: 34, 5: 0, 6: 0.5, 7: 4, 8: 0.5, 9: 3, 10: 2 / 8, 15: 2, 16: 2, 17: 0, 18: 0}),
    "delta_rule_backward": (
        "_Z26delta_rule_backward_kernelI13__nv_bfloat16Li32E", LAYERS, ROWS / 1024 * HEADS * 2 * 8,
        12 * C * LAYERS * ROWS, 32,
        {0: 2, 1: 2, 2: 2 / 8, 3: 34, 7: 0, 9: 0, 10: 0.5, 11: 4, 12: 0.5, 13: 3, 14: 2 / 34, 16: 2, 17: 2 / 8, 21: 0.5,
         22: 1.5, 24: 2, 25: 2, 26: 2, 28: 2, 29: 0, 31: 1 / 8}),
    "delta_rule_dz": ("_Z20delta_rule_dz_kernelI13__nv_bfloat16Lb1E", LAYERS, ROWS * HEADS / 4,
                      10 * C * LAYERS * ROWS, 7, {4: 2, 5: 0, 6: 0}),
    # --optimizer muon: four kinds of matrices, and five steps for each
    "muon_momentum": ("_Z20muon_momentum_kernel", 4 * LAYERS, MATRICES / 128 / (4 * LAYERS), 16 * MATRICES, 0, {}),
    "muon_squares": ("_Z19muon_squares_kernel", 4, MATRICES / 2**14 * 8 / 4, 4 * MATRICES, 3,
                     {0: 0, 1: "16/load", 2: 8}),
    "muon_normalize": ("_Z21muon_normalize_kernel", 4, MATRICES / 2**14 * 8 / 4, 8 * MATRICES, 4,
                       {0: 0.25, 1: 8, 2: 0, 3: 4}),
    "convert": ("_Z14convert_kernelI13__nv_bfloat16E", 20, MATRICES / 128 / 4, 5 * 6 * MATRICES, 0, {}),
    "muon_update": ("_Z18muon_update_kernelI13__nv_bfloat16E", 4, MATRICES / 128 / 4, 14 * MATRICES, 0, {}),
}
# Not counted: (launches per step, bytes per step)
BYTES_ONLY = {
    "embedding_big": (1, 0), "loss_sum": (1, 0), "memset": (2, 0),
    "layer_sums": (LAYERS, 528 * 4 * C * (2 * NORMS - 1) + 4 * HEADS * LAYERS * ROWS),
    "conv_forward": (2 * LAYERS, 8 * C * LAYERS * ROWS), "conv_backward": (2 * LAYERS, 12 * C * LAYERS * ROWS),
}
UNLISTED = {"ema", "gather_rows", "probe", "tree_add"}   # kernels of --ema, scoring, start and several GPUs
# Bytes that a kernel moves, over its minimum: the carries of scans, which two passes write and read
MOVED = {"tssa_forward": 1.165, "tssa_backward": 1.163}
PRODUCT_LAUNCHES = LAYERS * 4 * 3 + 4 * 3   # 4 blocks of rows of the classifier
OPTIONS = {"--conv 4": ("conv_forward", "conv_backward"),
           "--memory 1": ("delta_rule_forward", "delta_rule_backward", "delta_rule_dz"),
           "--optimizer muon": ("muon_momentum", "muon_squares", "muon_normalize", "convert", "muon_update")}
MUON_PRODUCTS, MUON_RATE = (5 * LAYERS * 48 * C**3, 60), 400   # FLOPs, launches; expected TFLOP/s of small matrices


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def functions(listing):
    """{mangled name: [(address, instruction)]} up to the last EXIT."""
    code, current = {}, None
    for line in listing.splitlines():
        name = re.search(r"Function : (\S+)", line)
        step = re.match(r"\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", line)
        if name:
            current = code.setdefault(name.group(1), [])
        elif step and current is not None:
            current.append((int(step.group(1), 16), step.group(2)))
    for name, steps in code.items():
        last = max((i for i, (_, text) in enumerate(steps) if "EXIT" in text), default=len(steps) - 1)
        code[name] = steps[:last + 1]
    return code


def narrow_bounds(elf):
    """Failures: kernels whose __launch_bounds__ allow fewer threads than their launches have by registers.py."""
    failures, kernel, value = [], "", ""
    for line in elf.splitlines():
        kernel = line.removeprefix(".nv.info.") if line.startswith(".nv.info.") else kernel
        value = line.split(":")[1].strip() if "Attribute:" in line else value
        if "Value:" in line and value == "EIATTR_MAX_THREADS":
            most = int(line.split()[1], 16)
            if most < launch(kernel)[0]:
                failures.append(f"{kernel}: launched with {launch(kernel)[0]} threads, __launch_bounds__ allow {most}")
    return failures if kernel else ["cuobjdump -elf: no kernels"]


def loops_of(steps):
    """[(first, last)] instruction of each loop, that is of each branch backward."""
    at = {address: i for i, (address, _) in enumerate(steps)}
    loops = []
    for i, (address, text) in enumerate(steps):
        jump = re.search(r"\bBRA(?:\.\w+)*\s+(?:.*,\s*)?(0x[0-9a-f]+)", text)
        if jump and int(jump.group(1), 16) <= address:
            loops.append((at[int(jump.group(1), 16)], i))
    return sorted(loops, key=lambda loop: (loop[0], -loop[1]))


def instructions(steps, loops, trips):
    """Instructions that a warp issues."""
    counts = [1.0] * len(steps)
    for n, (first, last) in enumerate(loops):
        often = trips.get(n, 1)
        if isinstance(often, str):
            loads = sum(bool(re.match(r"(@!?\w+ )?LDG", text)) for _, text in steps[first:last + 1])
            often = float(often.split("/")[0]) / max(loads, 1)
        for i in range(first, last + 1):
            counts[i] *= often
    return sum(counts)


def measure(code):
    """{kernel: instructions per warp}; failures as text."""
    found, failures = {}, []
    for kernel, (symbol, _, _, _, expected, trips) in KERNELS.items():
        steps = next((s for name, s in code.items() if name.startswith(symbol)), None)
        if steps is None:
            failures.append(f"{kernel}: the object file has no {symbol}...")
            continue
        loops = loops_of(steps)
        if len(loops) != expected:
            failures.append(f"{kernel}: {len(loops)} loops, but the trips in sass.py are for {expected}")
        found[kernel] = instructions(steps, loops, trips)
    names = {re.match(r"_Z\d+(\w+?)_kernel", name)[1] for name in code}
    return found, failures + [f"{name}: in no table of sass.py"
                              for name in sorted(names - KERNELS.keys() - BYTES_ONLY.keys() - UNLISTED)]


def forbidden(listing):
    """Failures: instructions that no kernel may have, in the code for all architectures."""
    name, failures = "", {}
    for line in listing.splitlines():
        name = line.split()[-1] if "Function :" in line else name
        bad = re.search(r"\b(LDL|STL|LDG\S*\.CONSTANT)\b", line)
        if bad:
            failures[name, bad[1]] = failures.get((name, bad[1]), 0) + 1
    return [f"{name}: {count} × {text}" for (name, text), count in failures.items()]


def bytes_ms(count, bandwidth=BANDWIDTH):
    return count / bandwidth * 1e3


def grown(found, recorded):
    """Failures: kernels with over 5 % more instructions than the table `recorded`, and those that are not in it."""
    before = dict(re.findall(r"^\| (\w+) \| (\d+) \|", recorded, re.M))
    return [f"{kernel}: {count:.0f} instructions, recorded are {before.get(kernel, 'none')}; if that is intended, run "
            "make sass and commit SASS.md"
            for kernel, count in found.items() if count > GROWTH * float(before.get(kernel, 0))]


def estimates(found):
    """Per kernel: name, instructions, issue and bytes in ms, launches, floor, expectation and that of an H100 in ms, and
    the expectation / the time of the minimum's bytes."""
    for kernel in [*found, *BYTES_ONLY]:
        launches, least = BYTES_ONLY.get(kernel) or (KERNELS[kernel][1], KERNELS[kernel][3])
        count, moved = found.get(kernel, 0), least * MOVED.get(kernel, 1)
        issue = count * launches * KERNELS[kernel][2] / SCHEDULERS / CLOCK * 1e3 if kernel in KERNELS else 0
        likely, on_h100 = (max(issue / ISSUED, bytes_ms(moved, bandwidth) / STREAMED) + launches * LAUNCH
                           for bandwidth in (BANDWIDTH, BANDWIDTH_H100))
        yield (kernel, count, issue, bytes_ms(moved), launches, max(issue, bytes_ms(moved)), likely, on_h100,
               likely / bytes_ms(least) if least else 0)


def record(found, compiler):
    text = f"""# What bounds each kernel, counted in its machine code

Written by `make sass`, without a GPU: instructions that a warp issues ({ARCH}, {compiler}), and estimates for one
optimizer step of tost-base in bf16 with B 64, T 1024 on an H200. No time here is measured. dev/cuda/sass.py lists how
often each loop counts; both sides of a branch count.

- Floor: the larger of issue at {SCHEDULERS} schedulers and {CLOCK * 1e-9:.3f} GHz, and bytes at {BANDWIDTH * 1e-12} TB/s,
  quoted for a copy: each input read once and each output written once, and the carries of scans. Of matrix products:
  FLOPs at {PRODUCTS * 1e-12:.0f} TFLOP/s, quoted for a large one.
- Expected: {ISSUED:.0%} of the issue rate, because warps wait for operands and at barriers; {STREAMED:.0%} of a copy's
  bandwidth, because kernels have several arrays and blocks that end unevenly; {LAUNCH * 1e3:.0f} µs per launch, for its
  start and its last blocks. Of matrix products: the rates in the second table. The range is that of these rates.
  Not counted: some 0.05 ms between the gradient's norm and AdamW, while the host reads the norm and the loss. The
  host prepares the next step while AdamW runs.
- Programmatic dependent launch is not used. It could hide a part of the {LAUNCH * 1e3:.0f} µs between two kernels that
  both support it, but nearly all are launched between two products of cuBLASLt, whose interface has no setting for it.
- GELU fused with the products around it would save up to 5 ms. But cuBLASLt's epilogues compute the tanh form, not the
  exact one, and the CUDA toolkit has no header-only matrix product with a custom epilogue (CUTLASS has one, but would
  be a new dependency).
- On an H100: the same at {BANDWIDTH_H100 * 1e-12} TB/s.
- × minimum: the expected time / that of the bytes at {BANDWIDTH * 1e-12} TB/s, without the carries of scans.
- The kernels of options are not part of the step; the last table has what an option adds to it.

| kernel | instructions | issue, ms | bytes, ms | launches | floor, ms | expected, ms | on an H100 | × minimum |
|---|---|---|---|---|---|---|---|---|
"""
    all_rows = list(estimates(found))
    for row in all_rows:
        text += "| {} | {:.0f} | {:.3f} | {:.3f} | {} | {:.3f} | {:.3f} | {:.3f} | {:.1f} |\n".format(*row)
    rows = [row for row in all_rows if row[0] not in sum(OPTIONS.values(), ())]
    text += "\n| matrix products | TFLOP | expected TFLOP/s | why | floor, ms | expected, ms |\n" + "|---" * 6 + "|\n"
    launches, others, likely_others, h100_others = (sum(row[i] for row in rows) for i in (4, 5, 6, 7))
    floor, likely = 0, PRODUCT_LAUNCHES * LAUNCH
    for name, (flops, rate, why) in MATMULS.items():
        times = flops / PRODUCTS * 1e3, flops / rate * 1e-9
        text += f"| {name} | {flops * 1e-12:.1f} | {rate} | {why} | {times[0]:.1f} | {times[1]:.1f} |\n"
        floor, likely = floor + times[0], likely + times[1]
    steps = [likely + others_of for others_of in (likely_others, h100_others)]
    ranges = [f"{step:.1f} ({LEAST * step:.0f} to {MOST * step:.0f})" for step in steps]
    rates = [f"{ROWS / step:.0f} ({ROWS / step / MOST:.0f} to {ROWS / step / LEAST:.0f})" for step in steps]
    text += f"""
| one step | floor, ms | expected, ms | on an H100 |
|---|---|---|---|
| matrix products, {PRODUCT_LAUNCHES} launches | {floor:.1f} | {likely:.1f} | {likely:.1f} |
| other kernels, {launches} launches | {others:.1f} | {likely_others:.1f} | {h100_others:.1f} |
| step | {floor + others:.1f} | {" | ".join(ranges)} |
| tokens/ms | {ROWS / (floor + others):.0f} | {" | ".join(rates)} |

| option, ms more per step | floor | expected | on an H100 |
|---|---|---|---|
"""
    for option, kernels in OPTIONS.items():
        more = [sum(row[i] for row in all_rows if row[0] in kernels) for i in (5, 6, 7)]
        if option == "--optimizer muon":   # without its savings in AdamW
            flops, count = MUON_PRODUCTS
            products = flops / PRODUCTS * 1e3, *2 * (flops / MUON_RATE * 1e-9 + count * LAUNCH,)
            more = [a + b for a, b in zip(more, products)]
        text += f"| {option} | {' | '.join(f'{ms:.1f}' for ms in more)} |\n"
        if option == "--memory 1":   # two blocks per head, each on a multiprocessor of its own; dz on all
            issue = sum(row[2] for row in all_rows if row[0] in kernels[:2]) * 132 / (2 * HEADS)
            text += f"| {option}, one sequence of {ROWS:,} tokens | {issue:.0f} {2 * f'| {issue / ISSUED:.0f} '}|\n"
    return text


def skip(reason):
    print(f"skipped sass: {reason}\nsass: 0 passed, 0 failed, 1 skipped")
    sys.exit(77)


def main():
    write = "--write" in sys.argv
    paths = [a for a in sys.argv[1:] if a != "--write"]
    if len(paths) != 2:
        sys.exit("usage: sass.py [--write] OBJECT RECORD")
    cuobjdump, nvcc = os.environ.get("CUOBJDUMP", "cuobjdump"), os.environ.get("NVCC", "nvcc")
    if not shutil.which(cuobjdump):
        skip(f"no {cuobjdump}; it is part of the CUDA toolkit, or pip install nvidia-cuda-cuobjdump")
    compiler = "nvcc " + re.search(r"V([\d.]+)", output_of(nvcc, "--version")).group(1)
    code = functions(output_of(cuobjdump, "-sass", "-arch", ARCH, paths[0]))
    found, failures = measure(code)
    failures += forbidden(output_of(cuobjdump, "-sass", paths[0]))
    failures += narrow_bounds(output_of(cuobjdump, "-elf", "-arch", ARCH, paths[0]))
    if write and not failures:
        with open(paths[1], "w") as file:
            file.write(record(found, compiler))
    with open(paths[1]) as file:
        recorded = file.read()
    if compiler in recorded:
        failures += grown(found, recorded)
    elif not failures:
        skip(f"{paths[1]} was recorded with another compiler than {compiler}")
    for failure in failures:
        print("FAILED sass:", failure)
    print(f"sass: {len(found)} passed, {len(failures)} failed, 0 skipped")
    sys.exit(bool(failures))


main()
