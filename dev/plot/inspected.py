"""Reads and checks the files of `train_gpt_tost inspect`."""

import sys
from pathlib import Path

try:
    import numpy as np
    from safetensors import SafetensorError, safe_open
except ImportError as error:
    sys.exit(f"{error}: pip install numpy safetensors")

from cli import describe

TENSORS = {"tokens": ("I32", 1), "offsets": ("I32", 1), "loss": ("F32", 1), "pi": ("F32", 3), "w": ("F32", 3),
           "text": ("U8", 1)}  # dtype and number of dimensions


class Inspection:
    """Arrays tokens (T), offsets (T+1), loss (T), pi (L,nh,T), w (L,T,C); text as bytes; model and step."""

    def __init__(self, path):
        self.path = str(path)
        if Path(path).is_dir():
            raise ValueError(f"{path}: is a folder; give the file that inspect wrote")
        try:
            with safe_open(self.path, framework="np") as file:
                metadata = file.metadata() or {}
                if metadata.get("content") != "inspect":
                    raise ValueError(f"{path}: not a file of `train_gpt_tost inspect`")
                for name, kind in TENSORS.items():
                    setattr(self, name, self.read(file, name, kind))
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or describe(error)}") from error
        except SafetensorError as error:
            raise ValueError(f"{path}: not a complete safetensors file of inspect ({describe(error)})") from error
        self.text = self.text.tobytes()
        step = metadata.get("step", "0")
        if not step.isdecimal():
            raise ValueError(f"{path}: step {step} in the metadata is not an integer")
        self.model, self.step = metadata.get("model", self.path), int(step)
        self.layers, self.heads, self.length = self.pi.shape
        self.check()

    def read(self, file, name, kind):
        if name not in file.keys():
            raise ValueError(f"{self.path}: tensor '{name}' is missing; run inspect again")
        stored = file.get_slice(name)
        dtype, shape = stored.get_dtype(), tuple(stored.get_shape())
        if (dtype, len(shape)) != kind or 0 in shape:
            raise ValueError(f"{self.path}: '{name}' is {dtype} {shape}, expected {kind[0]} with {kind[1]} dimensions")
        return file.get_tensor(name)

    def check(self):
        T, C = self.length, self.w.shape[-1]
        shapes = {"tokens": (T,), "offsets": (T + 1,), "loss": (T,), "w": (self.layers, T, C)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{self.path}: '{name}' has shape {getattr(self, name).shape}, expected {shape} "
                                 "from the shape of 'pi'")
        rising = np.all(np.diff(self.offsets) >= 0) and self.offsets[0] == 0
        if not rising or self.offsets[-1] != len(self.text) or C % self.heads:
            raise ValueError(f"{self.path}: offsets, text and heads are inconsistent")
        if not (np.isfinite(self.pi).all() and np.isfinite(self.w).all()):
            raise ValueError(f"{self.path}: 'pi' or 'w' contains NaN or infinity")
        if self.pi.min() < 0 or np.abs(self.pi.sum(1) - 1).max() > 1e-3:
            raise ValueError(f"{self.path}: 'pi' is not a membership: it does not sum to 1 over the heads")

    def mean_loss(self):
        """Nats per token, without the first token, which has no context. NaN for a single token."""
        return float(self.loss[1:].mean()) if self.length > 1 else float("nan")

    def same_text(self, other):
        return np.array_equal(self.tokens, other.tokens) and self.text == other.text
