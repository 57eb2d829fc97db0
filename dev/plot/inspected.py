"""The files that `train_gpt_tost inspect` writes, read and checked for the pictures."""

import sys
from pathlib import Path

try:
    import numpy as np
    from safetensors import SafetensorError, safe_open
except ImportError as error:
    sys.exit(f"{error}: pip install numpy safetensors")

from lines import why

UNREADABLE = (OSError, ValueError)
KINDS = {"tokens": ("I32", 1), "offsets": ("I32", 1), "loss": ("F32", 1), "pi": ("F32", 3), "w": ("F32", 3),
         "text": ("U8", 1)}  # type and number of sizes


class Inspection:
    """tokens (T), offsets (T+1), loss (T), pi (L,nh,T), w (L,T,C) as arrays; text as bytes; model and step."""

    def __init__(self, path):
        self.path = str(path)
        if Path(path).is_dir():
            raise ValueError(f"{path}: is a folder: name the file that inspect wrote")
        try:
            with safe_open(self.path, framework="np") as file:
                stated = file.metadata() or {}
                if stated.get("content") != "inspect":
                    raise ValueError(f"{path}: is no file that `train_gpt_tost inspect` wrote")
                for name, kind in KINDS.items():
                    setattr(self, name, self.read(file, name, kind))
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or why(error)}") from error
        except SafetensorError as error:
            raise ValueError(f"{path}: is no whole safetensors file, as inspect writes them ({why(error)})") from error
        self.text = self.text.tobytes()
        step = stated.get("step", "0")
        if not step.isdecimal():
            raise ValueError(f"{path}: states the step {step}: a whole number is wanted")
        self.model, self.step = stated.get("model", self.path), int(step)
        self.layers, self.heads, self.length = self.pi.shape
        self.check()

    def read(self, file, name, kind):
        if name not in file.keys():
            raise ValueError(f"{self.path}: tensor '{name}' is missing: inspect the text again")
        stored = file.get_slice(name)
        is_kind = stored.get_dtype(), len(stored.get_shape())
        if is_kind != kind or 0 in stored.get_shape():
            raise ValueError(f"{self.path}: '{name}' is {is_kind[0]} of {tuple(stored.get_shape())}: {kind[0]} of "
                             f"{kind[1]} sizes is wanted")
        return file.get_tensor(name)

    def check(self):
        T, C = self.length, self.w.shape[-1]
        shapes = {"tokens": (T,), "offsets": (T + 1,), "loss": (T,), "w": (self.layers, T, C)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{self.path}: '{name}' is of {getattr(self, name).shape}, pi wants {shape}")
        rising = np.all(np.diff(self.offsets) >= 0) and self.offsets[0] == 0
        if not rising or self.offsets[-1] != len(self.text) or C % self.heads:
            raise ValueError(f"{self.path}: offsets, text and heads do not fit together")
        if not (np.isfinite(self.pi).all() and np.isfinite(self.w).all()):
            raise ValueError(f"{self.path}: pi or w are not all numbers")
        if self.pi.min() < 0 or np.abs(self.pi.sum(1) - 1).max() > 1e-3:
            raise ValueError(f"{self.path}: pi is no membership: a token's does not sum to 1")

    def mean_loss(self):
        """Nats a token, without the first, which nothing foretells; NaN where there is no other."""
        return float(self.loss[1:].mean()) if self.length > 1 else float("nan")

    def same_text(self, other):
        return np.array_equal(self.tokens, other.tokens) and self.text == other.text
