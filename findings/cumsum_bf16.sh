#!/bin/sh
# cumsum_bf16.sh: the cumulative sum of bfloat16 values in MLX stops growing at 256, while its sum does not. JAX's does
# not stop, so the same line of a model, such as a running sum of linear attention, fails in one library only.
#
# version    mlx and mlx-cpu 0.32.4, jax and jaxlib 0.10.2, numpy 2.4.6 with ml_dtypes 0.6.0 (PyPI), on the CPU
# expected   the last element of cumsum is about the sum: 4,096 ones give 4,096
# behaviour  MLX and NumPy with ml_dtypes round the running sum to the type of the array after each element. With 8 bits
#            of precision, 256 + 1 is 256. MLX's sum of the same array is exact. JAX adds in a tree of partial sums. In
#            float32, MLX's largest relative error over 2^20 numbers in [0, 1) is about 100 times that of JAX.
# seen
#            mlx bfloat16: cumsum 256, sum 4096
#            mlx float16: cumsum 2048, sum 4096
#            jax bfloat16: cumsum 4096, sum 4096
#            ml_dtypes bfloat16: cumsum 256
#            float32, error of 2^20 numbers: mlx above 1e-5, jax below 1e-6
#
# Needs Python 3.11 or newer with venv and pip. Exits with 1 if the output is another one.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check mlx==0.32.4 mlx-cpu==0.32.4 jax==0.10.2 jaxlib==0.10.2 \
    numpy==2.4.6 ml_dtypes==0.6.0
cat >sums.py <<'END'
import jax.numpy as jnp
import ml_dtypes
import mlx.core as mx
import numpy as np

N = 4096
mx.set_default_device(mx.cpu)
for kind in ("bfloat16", "float16"):
    ones = mx.ones(N, dtype=getattr(mx, kind))
    print(f"mlx {kind}: cumsum {mx.cumsum(ones)[-1].item():.0f}, sum {mx.sum(ones).item():.0f}")
ones = jnp.ones(N, jnp.bfloat16)
print(f"jax bfloat16: cumsum {float(jnp.cumsum(ones)[-1]):.0f}, sum {float(jnp.sum(ones)):.0f}")
print(f"ml_dtypes bfloat16: cumsum {float(np.cumsum(np.ones(N, ml_dtypes.bfloat16))[-1]):.0f}")

numbers = np.random.default_rng(0).random(1 << 20).astype(np.float32)
exact = np.cumsum(numbers.astype(np.float64))


def error(sums):
    return np.max(np.abs(np.asarray(sums, np.float64) - exact) / exact)


of_mlx, of_jax = error(mx.cumsum(mx.array(numbers))), error(jnp.cumsum(jnp.asarray(numbers)))
print("float32, error of 2^20 numbers:", "mlx above 1e-5," if of_mlx > 1e-5 else f"mlx {of_mlx:.1e},",
      "jax below 1e-6" if of_jax < 1e-6 else f"jax {of_jax:.1e}")
END
JAX_PLATFORMS=cpu venv/bin/python sums.py | tee seen
cat >expected <<'END'
mlx bfloat16: cumsum 256, sum 4096
mlx float16: cumsum 2048, sum 4096
jax bfloat16: cumsum 4096, sum 4096
ml_dtypes bfloat16: cumsum 256
float32, error of 2^20 numbers: mlx above 1e-5, jax below 1e-6
END
cmp seen expected
