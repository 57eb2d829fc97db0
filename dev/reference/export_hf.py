"""Exports a model to a folder that Hugging Face transformers loads with trust_remote_code=True.

    export_hf.py MODEL OUT          MODEL as in --model: a safetensors file, a checkpoint folder or a run

OUT contains config.json, model.safetensors (a copy), the model's code, tokenizer.json, generation_config.json and a
model card (README.md) with the run's data, options and losses. A model that was trained on ids,
without a vocab.bpe, is exported without a tokenizer, or with copies of the tokenizer.json of --tokenizer, which may be
of any kind, and of the tokenizer_config.json beside it. Then, in Python:

    tokenizer = AutoTokenizer.from_pretrained("OUT", trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained("OUT", trust_remote_code=True)

and in a shell: lm_eval --model hf --model_args pretrained=OUT,trust_remote_code=True --tasks lambada_openai
import_hf.py converts such a folder back. Needs Python 3.11 or later, torch 2.1 and safetensors. The folder needs
transformers 4.53 or later (tried: 4.53.0, 4.57.6, 5.0.0, 5.2.0, 5.23.0, 5.24.0).
"""

import json
import math
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))

from cli import about, command, need, new_path, option_parser, run
from vocabulary import EOT, PAD, find_tokenizer

parser = option_parser(__doc__)
parser.add_argument("model", type=Path, metavar="MODEL", help="run, checkpoint folder or safetensors file")
parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; it must not exist")
parser.add_argument("--tokenizer", type=Path, metavar="FILE",
                    help="vocab.bpe or tokenizer.json (default: the vocab.bpe beside the model file, if there is one)")
if __name__ == "__main__":
    parser.parse_args()   # --help does not need the packages below
    need("torch", "safetensors", "numpy")

from safetensors import SafetensorError, safe_open

from tost import Tost, find_model

CODE = Path(__file__).resolve().parent / "huggingface"


def special_ids(vocabulary):
    added = vocabulary.added if vocabulary else {}
    return {"bos_token_id": added.get(EOT), "eos_token_id": added.get(EOT), "pad_token_id": added.get(PAD)}


def model_config(config, vocabulary):
    return {"architectures": ["TostForCausalLM"], "model_type": "tost",
            "auto_map": {"AutoConfig": "configuration_tost.TostConfig",
                         "AutoModel": "modeling_tost.TostModel",
                         "AutoModelForCausalLM": "modeling_tost.TostForCausalLM"},
            **asdict(config), "n_tokens": vocabulary.size if vocabulary else None, "tie_word_embeddings": True,
            "use_cache": True, "torch_dtype": "float32", **special_ids(vocabulary)}


def tokenizer_config(config, vocabulary):
    limit = {"model_max_length": config.block_size} if config.positions == "learned" else {}
    if not vocabulary:
        return {"tokenizer_class": "PreTrainedTokenizerFast", **limit}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **limit,
            "bos_token": EOT, "eos_token": EOT, "pad_token": PAD if PAD in vocabulary.added else None,
            "unk_token": None, "padding_side": "left", "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False}


# ----------------------------------------------------------------------------------------------------------
# The model card


def loss_lines(metadata):
    titles = {"val_loss": f"validation loss at step {metadata.get('val_step')}",
              "best_val_loss": "best validation loss"}
    return [f"| {title} | {float(metadata[key]):.4f} nats/token |" for key, title in titles.items()
            if math.isfinite(float(metadata.get(key, "inf")))]


def state_size(config):
    """Numbers in the state of a sequence. Per layer: S, N and D; with convolutions, the last three inputs of both; with
    memory, G and k."""
    C, nh = config.n_embd, config.n_head
    return config.n_layer * (2 * C + nh + (6 * C if config.conv else 0) + (C * C // nh + C if config.memory else 0))


SPECIAL_TOKENS = f"""\
`{EOT}` in a text becomes its id, as in GPT-2; `train_gpt_tost tokenize` reads it as text, as does
`tokenizer(text, split_special_tokens=True)`, except on a line of its own between documents of plain text."""
HAS_PAD = f"""\
`{PAD}` is the first row of `wte` without a token; `generate` chooses such rows only after training or
`resize_token_embeddings`, since tokens that you add begin there."""
NO_PAD = f"""\
There is no pad token, as in GPT-2: add one and resize the embeddings, since with `pad_token = eos_token` collators mask
each `{EOT}`, and a tuned model does not stop."""
NO_SPECIAL_IDS = "The config has no ids of special tokens: give `generate` the `eos_token_id`."


def model_card(name, config, vocabulary, metadata, parameters, losses):
    options = {key.removeprefix("option."): value for key, value in metadata.items() if key.startswith("option.")}
    shown = ["data", "val-data", "order", "batch", "seq", "total-batch", "steps", "lr", "schedule", "warmup",
             "min-lr-frac", "weight-decay", "momentum", "beta1", "beta2", "grad-clip", "seed", "dtype"]
    table = [f"| steps, tokens | {int(metadata.get('step', 0)):,}, {int(metadata.get('tokens', 0)):,} |"]
    table += [f"| `--{key}` | `{options[key]}` |" for key in shown if options.get(key)]
    table += losses
    longer = ("longer inputs are refused; `generate` continues with the last half block"
              if config.positions == "learned" else "there are no position embeddings: inputs can be longer")
    described, note = f"{config.vocab_size} ids of another program's tokenizer", NO_SPECIAL_IDS
    if vocabulary:
        described = f"{vocabulary.size} tokens of byte-level BPE; `{EOT}` has id {vocabulary.eot}"
        note = f"{SPECIAL_TOKENS} {HAS_PAD if PAD in vocabulary.added else NO_PAD}"
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- tost
---
# {name}

A Token Statistics Transformer (ToST; Wu et al., ICLR 2025, [arXiv 2412.17810](https://arxiv.org/abs/2412.17810)),
trained with train_gpt_tost. Attention is linear in the sequence length, and generation keeps a state of
{state_size(config):,} numbers, whatever the length.

| | |
|---|---|
| parameters | {parameters:,} |
| layers, heads, channels | {config.n_layer}, {config.n_head}, {config.n_embd} |
| block size | {config.block_size} tokens; {longer} |
| vocabulary | {described} |

## Use

Needs transformers 4.53 or later. Tried: 4.53.0 to 5.24.0, TRL 1.16.0 (packed rows are read document by document), peft
0.21.2, lm_eval 0.4.13, torch.export and torch.onnx.export of torch 2.15.0, onnxruntime 1.32.0, OpenVINO 2026.4.1, which
computes in bfloat16 on some processors, with errors of 1 to 2 %, unless `INFERENCE_PRECISION_HINT` is `f32`. ExecuTorch
1.5.1 converts all models; those with `--memory 1` were tried with a fixed length. coremltools 9.0 converts models
without `--memory 1`, after `torch.jit.trace`.
Call `torch._dynamo.reset()` before a second `torch.export` of a model with `--memory 1` in one process.

    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(PATH, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(PATH, trust_remote_code=True)
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))

{note}

`transformers.Trainer` chooses by name what decays, and would also decay `gamma1`, `gamma2`, `temp`, `memory_scale` and
the convolutions. For the weight decay of train_gpt_tost, give it the model's groups:

    optimizer = torch.optim.AdamW(model.optimizer_groups(weight_decay=0.1), lr=1e-4)
    Trainer(model, arguments, optimizers=(optimizer, None), …)

To load the model by its path in TRL, set `trust_remote_code=True` in `SFTConfig` or the config you use. The tokenizer
needs it, too: `AutoTokenizer.from_pretrained(PATH, trust_remote_code=True)`.

## Training

| | |
|---|---|
{chr(10).join(table)}
"""


# ----------------------------------------------------------------------------------------------------------


def write_folder(folder, model_file, config, vocabulary, unread, card):
    files = {"config.json": model_config(config, vocabulary),
             "generation_config.json": special_ids(vocabulary)}
    if vocabulary or unread:
        files["tokenizer_config.json"] = tokenizer_config(config, vocabulary)
    if vocabulary:
        files["tokenizer.json"] = vocabulary.tokenizer_json()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")
    for name in ("configuration_tost.py", "modeling_tost.py"):
        shutil.copyfile(CODE / name, folder / name)
    shutil.copyfile(model_file, folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if unread and (unread.parent / name).is_file():
            shutil.copyfile(unread.parent / name, folder / name)


def choose_tokenizer(metadata, model_file, given):
    """(Vocabulary, None), (None, tokenizer.json to copy unread), or (None, None): no tokenizer."""
    if not given and "tokenizer_hash" not in metadata and not (model_file.parent / "vocab.bpe").is_file():
        print(f"{model_file} has no vocab.bpe beside it: exported without a tokenizer; --tokenizer FILE adds one",
              file=sys.stderr)
        return None, None
    try:
        return find_tokenizer(metadata, model_file, given)[1], None
    except ValueError as error:
        if not given or "tokenizer_hash" in metadata:
            raise
        if given.name != "tokenizer.json":
            raise ValueError(f"{error}; only a file named tokenizer.json is copied unread") from error
        return None, given


def export(source, out, given):
    model_file = find_model(source)
    with safe_open(model_file, framework="pt") as file:
        metadata = file.metadata() or {}
    model = Tost.from_checkpoint(model_file)
    vocabulary, unread = choose_tokenizer(metadata, model_file, given)
    if vocabulary and vocabulary.size > model.config.vocab_size:
        raise ValueError(f"the tokenizer has {vocabulary.size} tokens, but {model_file} only "
                         f"{model.config.vocab_size}: give its own tokenizer as --tokenizer")
    if vocabulary and vocabulary.size < model.config.vocab_size:
        vocabulary.added.setdefault(PAD, vocabulary.size)
    parameters = sum(p.numel() for p in model.parameters())
    card = model_card(out.name, model.config, vocabulary, metadata, parameters, loss_lines(metadata))
    with new_path(out) as part:
        part.mkdir()
        write_folder(part, model_file, model.config, vocabulary, unread, card)


@command()
def main(arguments):
    args = parser.parse_args(arguments)
    with about(args.model, SafetensorError):
        export(args.model, args.out, args.tokenizer)
    print(args.out)


if __name__ == "__main__":
    sys.exit(run(main))
