#!/bin/sh
# onnx_epsilon_dropped.sh: torch.onnx.export removes the addition of a constant of at most 1e-8, such as the epsilon of
# a division, without a warning: a quotient that PyTorch gives as 0 is nan in the ONNX file. Written as a vector of one
# element, or with optimize=False, the addition stays.
#
# version    torch 2.15.0, onnxscript 0.7.2, onnx 1.23.2, onnxruntime 1.32.0 (PyPI), on the CPU
# expected   onnxruntime's x / (x + 1e-8) of [0, 2e-8, 1] is that of PyTorch
# behaviour  The optimizer of onnxscript, which export runs by default, rewrites x + 0 to x, and compares the constant
#            with 0 to an absolute tolerance of 1e-8. The rule looks at scalars only.
# seen
#            PyTorch                   [0.0, 0.6667, 1.0]
#            + 1e-8                    Add: 0 [nan, 1.0, 1.0]
#            + 1.1e-8                  Add: 1 [0.0, 0.6452, 1.0]
#            + vector of 1e-8          Add: 1 [0.0, 0.6667, 1.0]
#            + 1e-8, optimize=False    Add: 1 [0.0, 0.6667, 1.0]
#            warnings that name the addition: 0
#
# Needs Python 3.11 or newer with venv and pip. Exits with 1 if the output is another one.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check torch==2.15.0 onnxscript==0.7.2 onnx==1.23.2 onnxruntime==1.32.0 \
    numpy==2.4.6
cat >epsilon.py <<'END'
import warnings

import onnxruntime
import torch


class Quotient(torch.nn.Module):
    def __init__(self, epsilon, vector):
        super().__init__()
        self.epsilon, self.vector = epsilon, vector

    def forward(self, x):
        return x / (x + (x.new_full((1,), self.epsilon) if self.vector else self.epsilon))


def rounded(values):
    return [round(value, 4) for value in values.tolist()]


x = torch.tensor([0, 2e-8, 1])
print(f"{'PyTorch':26}{rounded(Quotient(1e-8, False)(x))}")
named = 0
for title, epsilon, vector, options in (
    ("+ 1e-8", 1e-8, False, {}), ("+ 1.1e-8", 1.1e-8, False, {}), ("+ vector of 1e-8", 1e-8, True, {}),
    ("+ 1e-8, optimize=False", 1e-8, False, {"optimize": False}),
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = torch.onnx.export(Quotient(epsilon, vector), (x,), dynamo=True, verbose=False, **options)
    named += sum("Add" in str(w.message) or "epsilon" in str(w.message) for w in caught)
    adds = sum(node.op_type == "Add" for node in program.model.graph)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    out = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    print(f"{title:26}Add: {adds} {rounded(out)}")
print("warnings that name the addition:", named)
END
venv/bin/python epsilon.py 2>errors | tee seen || { cat errors; exit 1; }
cat >expected <<'END'
PyTorch                   [0.0, 0.6667, 1.0]
+ 1e-8                    Add: 0 [nan, 1.0, 1.0]
+ 1.1e-8                  Add: 1 [0.0, 0.6452, 1.0]
+ vector of 1e-8          Add: 1 [0.0, 0.6667, 1.0]
+ 1e-8, optimize=False    Add: 1 [0.0, 0.6667, 1.0]
warnings that name the addition: 0
END
cmp seen expected
