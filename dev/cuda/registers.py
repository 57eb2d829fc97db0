#!/usr/bin/env python3
"""registers.py FILE.ptxas...: checks the registers of the kernels in the output of nvcc -Xptxas -v. As many blocks as
the launches count on must fit in the 65,536 of a multiprocessor, and no kernel may spill."""
import argparse
import re
import sys

# kernel: (most threads of a block, blocks on a multiprocessor); of others, 256 threads
LAUNCHES = {
    "residual_layernorm_forward_kernelI13__nv_bfloat16Li4E": (256, 3),   # 768 channels: 8 rows per block
    "residual_layernorm_forward_kernelIfLi4E": (256, 3),
    "residual_layernorm_forward_kernel": (512, 1),
    "layernorm_residual_backward_kernelI13__nv_bfloat16Li4E": (192, 4),   # 768 channels
    "layernorm_residual_backward_kernelIfLi4E": (768, 1),
    "layernorm_residual_backward_kernel": (512, 1),
    "bias_backward_kernel": (256, 4),
    "conv_forward_kernel": (192, 4),   # 768 channels
    "conv_backward_kernel": (192, 4),
    "gelu_backward_kernelI13__nv_bfloat16Lb1E": (128, 10),
    "gelu_backward_kernel": (128, 4),
    "tssa_forward_kernel": (384, lambda arch: 1 if arch >= 100 else 2),
    "tssa_backward_kernelI13__nv_bfloat16": (384, lambda arch: 1 if arch >= 100 else 2),
    "tssa_backward_kernel": (384, 1),
    "delta_rule_forward_kernel": (256, 3),
    "delta_rule_backward_kernelI13__nv_bfloat16": (256, 2),
    "delta_rule_backward_kernel": (256, 1),
    "delta_rule_dz_kernel": (256, 4),
    "layer_sums_kernel": (512, 1),
    "cross_entropy_kernel": (1024, lambda arch: 2 if arch in (80, 90) or arch // 10 == 10 else 1),
    "loss_sum_kernel": (1024, 1),
}


def launch(kernel):
    """(most threads of a block, blocks on a multiprocessor) of a kernel's mangled name"""
    return next((use for name, use in LAUNCHES.items() if name in kernel), (256, 1))


def check(text):
    """(kernels, failures)"""
    kernels = re.findall(r"Compiling entry function '(\w+)' for 'sm_(\d+)\w*'.*?(\d+) bytes spill stores.*?"
                         r"Used (\d+) registers", text, re.S)
    failures = []
    for name, arch, spilled, registers in kernels:
        threads, blocks = launch(name)
        blocks = blocks(int(arch)) if callable(blocks) else blocks
        allocated = (int(registers) + 7) // 8 * 8
        if blocks * threads * allocated > 65536 or int(spilled) > 0:
            failures.append(f"{name} for sm_{arch}: {registers} registers, {blocks} blocks of {threads} threads, "
                            f"{spilled} bytes spilled")
    return len(kernels), failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE.ptxas")
    kernels, failures = 0, []
    for path in parser.parse_args().files:
        with open(path) as file:
            found, failed = check(file.read())
        kernels += found
        failures += failed if found else [f"{path}: no kernels"]
    for failure in failures:
        print("FAILED registers:", failure)
    print(f"registers: {kernels - len(failures)} passed, {len(failures)} failed, 0 skipped")
    sys.exit(bool(failures) or not kernels)


if __name__ == "__main__":
    main()
