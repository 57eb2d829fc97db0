"""Converts the weights of a PyTorch checkpoint to a checkpoint that the trainer reads, and back.

    convert.py ckpt.pt DEST         writes DEST/model.safetensors or, if DEST ends in .safetensors, DEST. Use the result
                                    with --init, sample --model or eval --model
    convert.py MODEL DEST.pt        MODEL as in --model: a safetensors file, a checkpoint folder or a run

ckpt.pt has the format of nanoGPT and the published ToST code: {'model': state dict, 'model_args': sizes, …}.
Parameter names may have the prefix of torch.compile (_orig_mod.) or of DistributedDataParallel (module.);
lm_head.weight may be missing or equal to wte. Tensors become float32. A ckpt.pt written by this script contains
lm_head.weight, which the published model's load_state_dict requires, and 'model_args' with dropout 0.
The step (iter_num), best validation loss, tokens seen and tokenizer are also converted, the optimizer's state is not.
Needs Python 3.10, torch 2.1 and safetensors.
"""

import math
import os
import re
import sys
import warnings
import zipfile
from pathlib import Path

try:
    import torch
    from safetensors import SafetensorError, safe_open
except ImportError as error:
    sys.exit(f"{error}: pip install torch safetensors numpy")

sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))

from cli import describe, fail, option_parser, run
from tost import HEAD, WTE, Tost, TostConfig, find_model

PREFIX = re.compile(r"^(_orig_mod\.|module\.)+")
UNREADABLE = (OSError, ValueError, TypeError, RuntimeError)
MODEL_KEYS = ("step", "tokens", "best_val_loss", "tokenizer", "tokenizer_hash")  # in __metadata__


def damaged_member(path):
    """Name of the first member of torch.save's archive whose checksum is wrong, which torch.load does not verify.
    None if there is none, or for the older format, which has no checksums."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def load_pt(path):
    """The object in a torch.save file. Only tensors and plain values are unpickled, so the file cannot run code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        damaged = damaged_member(path)
    except Exception as error:  # torch.load raises many types
        if isinstance(error, OSError) and error.filename:
            raise
        raise ValueError(f"{path}: not a complete torch.save file of tensors and plain values; expected "
                         "{'model': state dict, 'model_args': sizes}") from error
    if damaged:
        raise ValueError(f"{path}: checksum of {damaged} is wrong: the file is damaged (or was saved without "
                         "checksums, see torch.serialization.set_crc32_options)")
    return checkpoint


def integer(path, name, value):
    """The value as a string; raises ValueError unless it is a non-negative integer."""
    try:
        if int(value) == value and value >= 0:
            return str(int(value))
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{path}: '{name}' is {value!r}: expected a non-negative integer")


def read_pt(path):
    """Returns the model and metadata of a ckpt.pt."""
    checkpoint = load_pt(path)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        hint = "; to convert a safetensors file, give a DEST.pt" if path.suffix == ".safetensors" else ""
        raise ValueError(f"{path}: no 'model'; expected {{'model': state dict, 'model_args': sizes}}{hint}")
    sizes, saved = (checkpoint.get(key) or {} for key in ("model_args", "tost"))
    if not isinstance(sizes, dict) or not isinstance(saved, dict):
        raise ValueError(f"{path}: 'model_args' is not a dictionary of sizes")
    state = {PREFIX.sub("", str(name)): tensor for name, tensor in checkpoint["model"].items()}
    if len(state) != len(checkpoint["model"]):
        raise ValueError(f"{path}: two tensors have the same name apart from the prefix")
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise ValueError(f"{path}: '{name}' in 'model' is not a dense tensor")
    config = {key: value if isinstance(value, str) else integer(path, key, value) for key, value in sizes.items()
              if key in TostConfig.__dataclass_fields__ and value is not None}
    model = Tost.from_state(state, config, path)
    metadata = {key: str(value) for key, value in saved.items() if key in MODEL_KEYS}
    for key in {"step", "tokens"} & metadata.keys():
        if not metadata[key].isdecimal():
            raise ValueError(f"{path}: '{key}' is {metadata[key]!r}: expected a non-negative integer")
    if "iter_num" in checkpoint:
        metadata["step"] = integer(path, "iter_num", checkpoint["iter_num"])
    if "best_val_loss" in checkpoint:
        try:
            metadata["best_val_loss"] = f"{float(checkpoint['best_val_loss']):.17g}"
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path}: 'best_val_loss' is not a number") from error
    return model, metadata


def read_safetensors(path):
    path = find_model(path)
    try:
        model = Tost.from_checkpoint(path)
        with safe_open(path, framework="pt") as file:
            saved = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path}: not a complete safetensors file ({describe(error)}); give a model, a checkpoint "
                         "folder or a run") from error
    return model, {key: value for key, value in saved.items() if key in MODEL_KEYS}


def write_pt(path, model, metadata):
    config = model.config
    sizes = {key: getattr(config, key) for key in TostConfig.__dataclass_fields__ if key != "membership"}
    if config.membership != "learned":  # the published model has no such argument
        sizes["membership"] = config.membership
    state = model.state_dict()
    content = {"model": state | {HEAD: state[WTE]}, "model_args": sizes | {"dropout": 0.0},
               "iter_num": int(metadata.get("step", 0)),
               "best_val_loss": float(metadata.get("best_val_loss", math.inf)), "tost": metadata}
    torch.save(content, path)


def convert(source, dest):
    """Writes dest under a temporary name and renames it when it is complete. Returns the path of the file."""
    if dest.suffix == ".pt":
        model, metadata = read_safetensors(source)
        file, write = dest, lambda part: write_pt(part, model, metadata)
    else:
        model, metadata = read_pt(source)
        file = dest if dest.suffix == ".safetensors" else dest / "model.safetensors"
        write = lambda part: model.save(part, metadata)
    if file.exists():
        raise FileExistsError(f"{file}: already exists: remove it, or choose another destination")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".tmp")
    try:
        write(part)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    return file


def name_file(error, args):
    """Adds the source's name to an error whose message names no file."""
    text = describe(error)
    named = isinstance(error, OSError) and error.filename or str(args.source) in text or str(args.dest) in text
    return error if named else ValueError(f"{args.source}: {text}")


def main(arguments=None):
    parser = option_parser(__doc__)
    parser.add_argument("source", type=Path, help="ckpt.pt or MODEL")
    parser.add_argument("dest", type=Path, help="DEST or DEST.pt")
    args = parser.parse_args(arguments)
    try:
        file = convert(args.source, args.dest)
    except UNREADABLE as error:
        return fail(name_file(error, args))
    print(file)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
