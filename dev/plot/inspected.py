"""The files that `train_gpt_tost inspect` writes, read and checked for the pictures."""

import numpy as np
from safetensors import SafetensorError, safe_open

UNREADABLE = (OSError, ValueError, SafetensorError)


class Inspection:
    """tokens (T), offsets (T+1), loss (T), pi (L,nh,T), w (L,T,C) as arrays; text as bytes; model and step."""

    def __init__(self, path):
        self.path = str(path)
        try:
            with safe_open(self.path, framework="np") as file:
                stated = file.metadata() or {}
                if stated.get("content") != "inspect":
                    raise ValueError("is no file that `train_gpt_tost inspect` wrote")
                for name in ("tokens", "offsets", "loss", "pi", "w", "text"):
                    setattr(self, name, file.get_tensor(name))
        except UNREADABLE as error:
            text = str(error).splitlines()[0]
            raise ValueError(text if self.path in text else f"{self.path}: {text}") from error
        self.text = self.text.tobytes()
        self.model, self.step = stated.get("model", self.path), int(stated.get("step", 0))
        self.layers, self.heads, self.length = self.pi.shape
        self.check()

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

    def mean_loss(self):
        """Nats a token, without the first, which nothing foretells; NaN where there is no other."""
        return float(self.loss[1:].mean()) if self.length > 1 else float("nan")

    def same_text(self, other):
        return np.array_equal(self.tokens, other.tokens) and self.text == other.text
