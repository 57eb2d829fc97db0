"""Converts the weights of a PyTorch checkpoint to a checkpoint that the trainer reads, and back.

    convert.py ckpt.pt DEST         writes DEST/model.safetensors or, if DEST ends in .safetensors, DEST. Use the result
                                    with --init, sample --model or eval --model
    convert.py MODEL DEST.pt        MODEL as in --model: a safetensors file, a checkpoint folder or a run

ckpt.pt has the format of nanoGPT and the published ToST code: {'model': state dict, 'model_args': sizes, …}.
Parameter names may have the prefix of torch.compile (_orig_mod.) or of DistributedDataParallel (module.);
lm_head.weight may be missing or equal to wte. Tensors become float32. A ckpt.pt written by this script contains
lm_head.weight, which the published model's load_state_dict requires, and 'model_args' with dropout 0.
The step (iter_num), best validation loss, tokens seen, and the tokenizer's name and CRC-32 are also converted; copy its
vocab.bpe to DEST. The optimizer's state is not converted.
Needs Python 3.11 or later, torch 2.1 and safetensors.
"""

import contextlib
import math
import re
import sys
import warnings
import zipfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))

from cli import about, command, need, new_path, option_parser, run

parser = option_parser(__doc__)
parser.add_argument("source", type=Path, help="ckpt.pt or MODEL")
parser.add_argument("dest", type=Path, help="DEST or DEST.pt")
if __name__ == "__main__":
    parser.parse_args()   # --help does not need the packages below
    need("torch", "safetensors", "numpy")

import torch
from safetensors import SafetensorError, safe_open

from tost import HEAD, WTE, Tost, TostConfig, find_model

PREFIX = re.compile(r"^(_orig_mod\.|module\.)+")
MODEL_KEYS = ("step", "tokens", "best_val_loss", "tokenizer", "tokenizer_hash")  # in __metadata__


def load_pt(path):
    """The object in a torch.save file. Only tensors and plain values are unpickled, so the file cannot run code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) if zipfile.is_zipfile(path) else contextlib.nullcontext() as archive:
            damaged = archive and archive.testzip()   # torch.load does not verify checksums; older files have none
    except Exception as error:  # torch.load raises many types
        if isinstance(error, OSError) and error.filename:
            raise
        raise ValueError(f"{path}: not a complete torch.save file of tensors and plain values; expected "
                         "{'model': state dict, 'model_args': sizes}") from error
    if damaged:
        raise ValueError(f"{path}: checksum of {damaged} is wrong: the file is damaged (or was saved without "
                         "checksums, see torch.serialization.set_crc32_options)")
    return checkpoint


def read_pt(path):
    """Returns the model and metadata of a ckpt.pt."""
    checkpoint = load_pt(path)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        hint = "; to convert a safetensors file, give a DEST.pt" if path.suffix == ".safetensors" else ""
        raise ValueError(f"{path}: no 'model'; expected {{'model': state dict, 'model_args': sizes}}{hint}")
    state = {PREFIX.sub("", str(name)): tensor for name, tensor in checkpoint["model"].items()}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise ValueError(f"{path}: '{name}' in 'model' is not a dense tensor")
    sizes, saved = (checkpoint.get(key) or {} for key in ("model_args", "tost"))
    config = {key: value if isinstance(value, str) else str(int(value)) for key, value in sizes.items()
              if key in TostConfig.__dataclass_fields__ and value is not None}
    metadata = {key: str(value) for key, value in saved.items() if key in MODEL_KEYS}
    if "iter_num" in checkpoint:
        metadata["step"] = str(int(checkpoint["iter_num"]))
    if "best_val_loss" in checkpoint:
        metadata["best_val_loss"] = f"{float(checkpoint['best_val_loss']):.17g}"
    return Tost.from_state(state, config, path), metadata


def read_safetensors(path):
    path = find_model(path)
    with about(f"{path}: not a complete safetensors file", SafetensorError):
        model = Tost.from_checkpoint(path)
        with safe_open(path, framework="pt") as file:
            saved = file.metadata() or {}
    return model, {key: value for key, value in saved.items() if key in MODEL_KEYS}


def write_pt(path, model, metadata):
    config = model.config
    sizes = {key: getattr(config, key) for key in config.metadata()}
    state = model.state_dict()
    content = {"model": state | {HEAD: state[WTE]}, "model_args": sizes | {"dropout": 0.0},
               "iter_num": int(metadata.get("step", 0)),
               "best_val_loss": float(metadata.get("best_val_loss", math.inf)), "tost": metadata}
    torch.save(content, path)


def convert(source, dest):
    """Returns the path of the file that it writes."""
    back = dest.suffix == ".pt"
    file = dest if back or dest.suffix == ".safetensors" else dest / "model.safetensors"
    with about(source, TypeError, RuntimeError, OverflowError):
        model, metadata = read_safetensors(source) if back else read_pt(source)
    with new_path(file) as part:
        if back:
            write_pt(part, model, metadata)
        else:
            model.save(part, metadata)
    return file


@command()
def main(arguments):
    args = parser.parse_args(arguments)
    print(convert(args.source, args.dest))


if __name__ == "__main__":
    sys.exit(run(main))
