#!/bin/sh
# The same learning rate and gradient give updates of three sizes in the Muon of four libraries: a rate that was tuned
# in one is up to 3 times too large or too small in another, and by another factor for every shape of matrix.
#
# versions: torch 2.15.0, muon-optimizer 0.1.0, keras 3.15.1 (on jax), optax 0.2.8, jax 0.10.2; Python 3.11
# behaviour: after one step from zero, the root mean square of a matrix of r rows and c columns, divided by that of
#     torch.optim.Muon(adjust_lr_fn="match_rms_adamw"). The factor 1 / (0.2 sqrt(max(r, c))) goes with
#     sqrt(max(1, r/c)) in torch's default and muon-optimizer, but with sqrt(max(1, c/r)) in optax's default
# seen:
#     matrix                          64 x 256   256 x 64  128 x 128
#     torch, match_rms_adamw            1.0000     1.0000     1.0000
#     torch, default                    0.3125     0.6250     0.4419
#     muon-optimizer                    0.3127     0.6221     0.4427
#     keras                             1.0002     1.0004     1.0002
#     optax, consistent_rms=0.2         1.0002     1.0004     1.0002
#     optax, default                    0.6251     0.3126     0.4420
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.15.0 muon-optimizer==0.1.0 keras==3.15.1 optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
cd "$dir"
KERAS_BACKEND=jax "$dir/venv/bin/python" - <<'END'
import math
import sys

import jax.numpy as jnp
import keras
import muon
import numpy as np
import optax
import torch

L, SHAPES = 0.01, ((64, 256), (256, 64), (128, 128))
GRADIENTS = {shape: np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in SHAPES}


def torch_step(optimizer, **options):
    def step(shape):
        p = torch.nn.Parameter(torch.zeros(shape))
        p.grad = torch.tensor(GRADIENTS[shape])
        optimizer([p], lr=L, weight_decay=0, **options).step()
        return p.detach().numpy()
    return step


def keras_step(shape):
    weights = keras.Variable(np.zeros(shape, np.float32), name="kernel")
    optimizer = keras.optimizers.Muon(learning_rate=L, weight_decay=None)
    optimizer.build([weights])
    optimizer.apply([keras.ops.convert_to_tensor(GRADIENTS[shape])], [weights])
    return keras.ops.convert_to_numpy(weights)


def optax_step(**options):
    def step(shape):
        optimizer, weights = optax.contrib.muon(L, weight_decay=0, **options), {"w": jnp.zeros(shape)}
        return optimizer.update({"w": jnp.asarray(GRADIENTS[shape])}, optimizer.init(weights), weights)[0]["w"]
    return step


def size(update):
    return float(np.sqrt(np.square(np.asarray(update, np.float64)).mean()))


def same(r, c):
    return 1


def by_rows(r, c):
    return math.sqrt(max(1, r / c)) / (0.2 * math.sqrt(max(r, c)))


def by_columns(r, c):
    return by_rows(c, r)


reference = torch_step(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
changed = False
print(f"{'matrix':28}" + "".join(f"{f'{r} x {c}':>11}" for r, c in SHAPES))
for name, step, expected in (("torch, match_rms_adamw", reference, same),
                             ("torch, default", torch_step(torch.optim.Muon), by_rows),
                             ("muon-optimizer", torch_step(muon.SingleDeviceMuon), by_rows),
                             ("keras", keras_step, same),
                             ("optax, consistent_rms=0.2", optax_step(consistent_rms=0.2), same),
                             ("optax, default", optax_step(), by_columns)):
    ratios = [size(step(shape)) / size(reference(shape)) for shape in SHAPES]
    changed |= any(abs(ratio / expected(*shape) - 1) > 0.02 for ratio, shape in zip(ratios, SHAPES))
    print(f"{name:28}" + "".join(f"{ratio:11.4f}" for ratio in ratios))
sys.exit("the behaviour changed" if changed else 0)
END
