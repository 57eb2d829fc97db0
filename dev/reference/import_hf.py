"""Converts a folder of export_hf.py, or of its model's save_pretrained, to a model that the trainer reads.

    import_hf.py FOLDER OUT         writes OUT/model.safetensors and, if FOLDER has a tokenizer.json, OUT/vocab.bpe

Use OUT with --init, sample --model or eval --model. Weights become float32. FOLDER may have one model.safetensors or
several listed in model.safetensors.index.json; save_pretrained copies the model's code from transformers 4.53 on. Needs
Python 3.11 or later, torch 2.1 and safetensors.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))

from cli import about, command, need, new_path, option_parser, run
from vocabulary import EOT, PAD, Vocabulary

parser = option_parser(__doc__)
parser.add_argument("folder", type=Path, metavar="FOLDER", help="Hugging Face folder")
parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; it must not exist")
if __name__ == "__main__":
    parser.parse_args()   # --help does not need the packages below
    need("torch", "safetensors", "numpy")

from safetensors import SafetensorError
from safetensors.torch import load_file

from tost import VARIANTS, Tost


def read_json(path):
    with about(path):
        content = json.loads(path.read_text(encoding="utf-8"))
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
    return metadata | {key: str(config[key]) for key in VARIANTS if key in config}


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
        with about(folder / name, SafetensorError):
            state |= load_file(folder / name)
    return {name: tensor.float() for name, tensor in state.items()}


def write_tokenizer(source, folder):
    """Writes vocab.bpe. Returns the metadata that names it."""
    if not source.is_file():
        return {}
    try:
        vocabulary = Vocabulary.read(source)
        if not vocabulary.standard:
            raise ValueError(f"{source}: its ids are not those of a vocab.bpe (bytes, merges, {EOT})")
    except ValueError as error:
        raise ValueError(f"{error}: the trainer cannot use it; remove it to import only the weights") from error
    if others := sorted(vocabulary.added.keys() - {EOT, PAD}):
        print(f"{source}: vocab.bpe cannot name {', '.join(others)}: sample never chooses them", file=sys.stderr)
    (folder / "vocab.bpe").write_bytes(vocabulary.vocab_bpe())
    return {"tokenizer": "vocab.bpe", "tokenizer_hash": f"{vocabulary.hash():08x}"}


@command()
def main(arguments):
    args = parser.parse_args(arguments)
    config = read_config(args.folder)
    model = Tost.from_state(read_weights(args.folder), config, args.folder)
    with new_path(args.out) as part:
        part.mkdir()
        model.save(part / "model.safetensors", write_tokenizer(args.folder / "tokenizer.json", part))
    print(args.out / "model.safetensors")


if __name__ == "__main__":
    sys.exit(run(main))
