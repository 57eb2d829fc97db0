"""Converts a folder of export_hf.py, or of its model's save_pretrained, to a model that the trainer reads.

    import_hf.py FOLDER OUT         writes OUT/model.safetensors and, if FOLDER has a tokenizer.json, OUT/vocab.bpe

Use OUT with --init, sample --model or eval --model. Weights become float32. FOLDER may have one model.safetensors or
several listed in model.safetensors.index.json. Needs Python 3.10, torch 2.1 and safetensors.
"""

import json
import os
import shutil
import sys
from pathlib import Path

try:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from tost import Tost
except ImportError as error:
    sys.exit(f"{error}: pip install torch safetensors numpy")

sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))

from cli import describe, fail, option_parser, run
from vocabulary import EOT, Vocabulary


def read_json(path):
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {describe(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a JSON object")
    return content


def read_config(folder):
    """The config as the trainer's metadata. Other architectures raise ValueError."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder}: no config.json: not a folder of a Hugging Face model")
    config = read_json(folder / "config.json")
    if config.get("model_type") != "tost":
        found = config.get("architectures") or [config.get("model_type")]
        raise ValueError(f"{folder}: the architecture is {found[0]}, not TostForCausalLM: import_hf.py reads only "
                         "folders of export_hf.py and of its model's save_pretrained")
    keys = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias")
    try:
        metadata = {key: str(int(config[key])) for key in keys}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder}/config.json: {error} is missing or not a number") from error
    return metadata | {key: str(config[key]) for key in ("membership", "document_token") if key in config}


def read_weights(folder):
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict):
            raise ValueError(f"{index}: no weight_map, which names the file of each tensor")
        names = sorted(map(str, set(files.values())))
    state = {}
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(f"{folder}: no {name}: save the model with save_pretrained, which writes safetensors")
        state |= load_file(folder / name)
    return {name: tensor.float() for name, tensor in state.items()}


def write_tokenizer(source, folder):
    """Writes vocab.bpe. Returns the metadata that names it."""
    if not source.is_file():
        return {}
    vocabulary = Vocabulary.read(source)
    if not vocabulary.standard:
        raise ValueError(f"{source}: its ids are not those of a vocab.bpe (bytes, merges, {EOT}), which the trainer needs")
    (folder / "vocab.bpe").write_bytes(vocabulary.vocab_bpe())
    return {"tokenizer": "vocab.bpe", "tokenizer_hash": f"{vocabulary.hash():08x}"}


def convert(folder, out):
    if out.exists():
        raise FileExistsError(f"{out}: already exists: remove it, or choose another OUT")
    config = read_config(folder)
    model = Tost.from_state(read_weights(folder), config, folder)
    part = out.with_name(out.name + ".tmp")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        model.save(part / "model.safetensors", write_tokenizer(folder / "tokenizer.json", part))
        os.replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def main(arguments=None):
    parser = option_parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="Hugging Face folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; it must not exist")
    args = parser.parse_args(arguments)
    try:
        convert(args.folder, args.out)
    except (OSError, ValueError, SafetensorError) as error:
        text = describe(error)
        named = isinstance(error, OSError) or str(args.out) in text or str(args.folder) in text
        return fail(error if named else f"{args.folder}: {text}")
    print(args.out / "model.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
