#!/usr/bin/env python3
"""registers.py [--object OBJECT] FILE.ptxas...: checks the kernels in the output of nvcc -Xptxas -v. The blocks
in LAUNCHES must fit on a multiprocessor, each of whose four parts has 16,384 registers, and no kernel may spill. With
--object, also checks the machine code in train_gpt_tost.o with cuobjdump; the environment variable CUOBJDUMP names
another one."""
import argparse
import os
import re
import shutil
import subprocess
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
    "tssa_forward_kernel": (224, 4),
    "tssa_backward_kernel": (224, 4),
    "delta_rule_forward_kernelI13__nv_bfloat16": (256, lambda arch: 1 if arch >= 100 else 3 if arch == 90 else 2),
    "delta_rule_forward_kernel": (256, lambda arch: 1 if arch >= 100 else 2),
    "delta_rule_backward_kernelI13__nv_bfloat16": (256, lambda arch: 1 if arch >= 100 else 2),
    "delta_rule_backward_kernel": (256, 1),
    "delta_rule_dz_kernel": (256, 4),
    "vector_gradients_kernel": (512, 1),
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
        warps = 4 * (16384 // (32 * allocated))   # that fit
        if blocks * threads > 32 * warps or int(spilled) > 0:
            failures.append(f"{name} for sm_{arch}: {registers} registers, {blocks} blocks of {threads} threads, "
                            f"{spilled} bytes spilled")
    return len(kernels), failures


def forbidden(listing):
    """(kernels, failures) of cuobjdump -sass. No kernel needs LDL or STL, which access spilled registers and arrays in
    local memory, or LDG.CONSTANT, a load through a cache that does not see what other blocks of the launch write."""
    kernels = listing.split("Function : ")[1:]
    found = [(code.split()[0], re.findall(r"\b(?:LDL|STL|LDG\S*\.CONSTANT)\b", code)) for code in kernels]
    return len(kernels), [f"{name}: {len(bad)} × {', '.join(sorted(set(bad)))}" for name, bad in found if bad]


def narrow_bounds(elf):
    """(kernels, failures) of cuobjdump -elf: __launch_bounds__ allow at least the threads of a launch."""
    bounds = [(text.split()[0], int(most, 16)) for text in elf.split("\n.nv.info.")[1:]
              for most in re.findall(r"EIATTR_MAX_THREADS\n.*\n\s*Value:\s*(0x\w+)", text)]
    return len(bounds), [f"{name}: launched with {launch(name)[0]} threads, __launch_bounds__ allow {most}"
                         for name, most in bounds if most < launch(name)[0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--object")
    parser.add_argument("files", nargs="+", metavar="FILE.ptxas")
    args = parser.parse_args()
    results, passed, failures, skipped = [], 0, [], 0
    for path in args.files:
        with open(path) as file:
            results.append((path, check(file.read())))
    cuobjdump = os.environ.get("CUOBJDUMP") or "cuobjdump"
    if args.object and shutil.which(cuobjdump):
        for option, verdict in (("-sass", forbidden), ("-elf", narrow_bounds)):
            command = [cuobjdump, option, args.object]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
            results.append((" ".join(command), verdict(output)))
    elif args.object:
        skipped = 1
        print(f"skipped registers: no {cuobjdump}; the CUDA toolkit has it, or pip install nvidia-cuda-cuobjdump")
    for what, (kernels, failed) in results:
        passed += kernels - len(failed)
        failures += failed if kernels else [f"{what}: no kernels"]
    for failure in failures:
        print("FAILED registers:", failure)
    print(f"registers: {passed} passed, {len(failures)} failed, {skipped} skipped")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
