"""A PyTorch checkpoint to one that the trainer reads, and back.

    convert.py ckpt.pt DEST         DEST/model.safetensors, or DEST itself where it ends in .safetensors:
                                    for --init, sample --model and eval --model
    convert.py MODEL DEST.pt        MODEL as for --model: a safetensors file, a checkpoint folder or a run

A ckpt.pt is what nanoGPT and the published ToST code save: {'model': state dict, 'model_args': sizes, …}.
Names may carry the prefix of torch.compile (_orig_mod.) or of DistributedDataParallel (module.), and
lm_head.weight may be there, equal to wte, or not. Tensors become float32. The way back writes lm_head.weight
too, as the published model's load_state_dict expects it, and 'model_args' with dropout 0.

Weights, sizes and what is known of the run go over: updates done (iter_num), best validation loss, tokens
seen, tokenizer. The optimiser's moments and the place in the data do not: a converted model is a beginning
(--init), not a run to resume. Needs Python 3.10, torch and safetensors.
"""

import argparse
import math
import os
import pickle
import re
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from tost import HEAD, WTE, Tost, TostConfig, find_model

PREFIX = re.compile(r"^(_orig_mod\.|module\.)+")
UNREADABLE = (OSError, ValueError, TypeError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError)
CARRIED = ("step", "tokens", "best_val_loss", "tokenizer", "tokenizer_hash")  # of __metadata__


def read_pt(path):
    """Model and facts of a ckpt.pt. Only tensors and plain values are unpickled: nothing in the file runs."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise ValueError(f"{path}: holds no 'model': {{'model': state dict, 'model_args': sizes}} is wanted")
    sizes, ours = (checkpoint.get(key) or {} for key in ("model_args", "tost"))
    if not isinstance(sizes, dict) or not isinstance(ours, dict):
        raise ValueError(f"{path}: 'model_args' is no dictionary of sizes")
    state = {PREFIX.sub("", name): tensor for name, tensor in checkpoint["model"].items()}
    if len(state) != len(checkpoint["model"]):
        raise ValueError(f"{path}: holds tensors that have one name but for their prefixes")
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{path}: '{name}' in 'model' is no tensor")
    stated = {key: value if isinstance(value, str) else str(int(value)) for key, value in sizes.items()
              if key in TostConfig.__dataclass_fields__ and value is not None}
    model = Tost.from_state(state, stated, path)
    facts = {key: str(value) for key, value in ours.items() if key in CARRIED}
    if "iter_num" in checkpoint:
        facts["step"] = str(int(checkpoint["iter_num"]))
    if "best_val_loss" in checkpoint:
        facts["best_val_loss"] = f"{float(checkpoint['best_val_loss']):.17g}"
    return model, facts


def read_safetensors(path):
    path = find_model(path)
    model = Tost.from_checkpoint(path)
    with safe_open(path, framework="pt") as file:
        stated = file.metadata() or {}
    return model, {key: stated[key] for key in CARRIED if key in stated}


def write_pt(path, model, facts):
    config = model.config
    sizes = {key: getattr(config, key) for key in TostConfig.__dataclass_fields__ if key != "membership"}
    if config.membership != "learned":  # the published model has no such argument
        sizes["membership"] = config.membership
    state = model.state_dict()
    torch.save({"model": state | {HEAD: state[WTE]}, "model_args": sizes | {"dropout": 0.0},
                "iter_num": int(facts.get("step", 0)),
                "best_val_loss": float(facts.get("best_val_loss", math.inf)), "tost": facts}, path)


def convert(source, dest):
    """Returns the file written. It takes its place when it is whole; one that is there already stays."""
    to_pt = dest.suffix == ".pt"
    file = dest if to_pt or dest.suffix == ".safetensors" else dest / "model.safetensors"
    if file.exists():
        raise FileExistsError(f"{file}: exists already: remove it, or choose another destination")
    model, facts = (read_safetensors if to_pt else read_pt)(source)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".tmp")
    try:
        write_pt(part, model, facts) if to_pt else model.save(part, facts)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    return file


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("dest", type=Path)
    args = parser.parse_args(arguments)
    try:
        print(convert(args.source, args.dest))
    except UNREADABLE as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        named = str(args.source) in text or str(args.dest) in text
        print(text if named else f"{args.source}: {text}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
