"""Converts a PyTorch checkpoint to one that the trainer reads, and back.

    convert.py ckpt.pt DEST         writes DEST/model.safetensors and, if ckpt.pt has AdamW's moments,
                                    DEST/optimizer.safetensors; if DEST ends in .safetensors, only the weights.
                                    Use the result with --init, sample --model or eval --model
    convert.py ckpt.pt RUN --run [--data GLOB] [--option NAME=VALUE]…
                                    writes RUN/step_N, which `train --resume --out RUN` continues
    convert.py MODEL DEST.pt        MODEL as in --model: a safetensors file, a checkpoint folder or a run

ckpt.pt has the format of nanoGPT and the published ToST code: {'model': state dict, 'model_args': sizes, …}.
Parameter names may have the prefix of torch.compile (_orig_mod.) or of DistributedDataParallel (module.);
lm_head.weight may be missing or equal to wte. Tensors become float32. A ckpt.pt written by this script contains
lm_head.weight, which the published model's load_state_dict requires, and 'model_args' with dropout 0.

'optimizer' is the state dict of a torch.optim.AdamW, which numbers its parameters: first those with weight decay,
then those without, each in the order of the state dict. The group sizes and shapes determine which parameters decay:
in nanoGPT all with two or more dimensions, in dev/reference/tost.py embeddings and the weights of Linear layers; a
single group also works. A ckpt.pt written by this script has nanoGPT's groups. The trainer never decays temp and
denom_bias, regardless of their group.

The step (iter_num), best validation loss, tokens seen, tokenizer and the trainer's run state are also converted, so a
run that is converted to ckpt.pt and back continues bit-identically. A ckpt.pt from another program has no run state:
with --run, give its shards with --data, and the trainer continues at that step in its own data order. Options are
taken from nanoGPT's 'config', if present, and from AdamW's groups; --option adds or overrides options.
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
from tost import HEAD, WTE, Tost, TostConfig, crc32, find_model, write_safetensors

PREFIX = re.compile(r"^(_orig_mod\.|module\.)+")
UNREADABLE = (OSError, ValueError, TypeError, RuntimeError)
MODEL_KEYS = ("step", "tokens", "best_val_loss", "tokenizer", "tokenizer_hash")  # __metadata__ of any checkpoint
RUN_KEYS = ("format_version", "data_sample", "seed", "skipped", "skipped_in_a_row", "last_losses", "last_grad_norms",
            "open_row")  # __metadata__ of a run, besides its options
OPTION = "option."  # prefix of the trainer's options in __metadata__
REQUIRED = ("data", "steps", "batch", "seq", "total-batch", "lr", "warmup", "min-lr-frac", "weight-decay", "beta1",
             "beta2", "eps", "grad-clip")  # otherwise a resumed run would take them from the starter preset


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
    """Returns the model, metadata, moments and raw content of a ckpt.pt."""
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
    metadata = {key: str(value) for key, value in saved.items() if is_converted(key)}
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
    moments = read_adamw(checkpoint, model, list(state), path)
    if moments and "step" not in metadata:
        metadata["step"] = str(int(next(iter(checkpoint["optimizer"]["state"].values())).get("step", 0)))
    return model, metadata, moments, checkpoint


# ----------------------------------------------------------------------------------------------------------
# AdamW's moments: {name: (exp_avg, exp_avg_sq)}


def groupings(shapes):
    """The known orders of a model's parameters in AdamW: each a list of groups, which are lists of names."""
    names = list(shapes)
    linear = [name for name in names if len(shapes[name]) == 2 and name.endswith(".weight")]
    multidim = [name for name in names if len(shapes[name]) >= 2]
    return [[multidim, [name for name in names if name not in multidim]],  # nanoGPT
            [linear, [name for name in names if name not in linear]],      # dev/reference/tost.py
            [names]]


def unused(name, model):
    """True if a parameter never gets a gradient. AdamW has no state for it, which is equivalent to zero moments."""
    return model.config.membership == "uniform" and name.endswith((".attn.temp", ".attn.denom_bias"))


def read_adamw(checkpoint, model, names, path):
    """The moments, or None if there are none. names: the parameters in the order of the state dict."""
    optimizer = checkpoint.get("optimizer") or {}
    if not isinstance(optimizer, dict) or not optimizer.get("state"):
        return None
    try:
        pairs = {number: (state["exp_avg"], state["exp_avg_sq"]) for number, state in optimizer["state"].items()}
        shapes = {number: [tuple(moment.shape) for moment in pair] for number, pair in pairs.items()}
        numbers = [list(group["params"]) for group in optimizer["param_groups"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: 'optimizer' is not a complete AdamW state: {error!r}") from error
    parameters = dict(model.named_parameters())
    for groups in groupings({name: tuple(parameters[name].shape) for name in names}):
        if [len(group) for group in groups] != [len(group) for group in numbers]:
            continue
        number = dict(zip(sum(groups, []), sum(numbers, [])))
        if all(shapes.get(number[name]) == [tuple(p.shape)] * 2 or (number[name] not in shapes and unused(name, model))
               for name, p in parameters.items()):
            return {name: pairs.get(number[name], (torch.zeros_like(p.data),) * 2) for name, p in parameters.items()}
    sizes = " and ".join(str(len(group)) for group in numbers)
    raise ValueError(f"{path}: 'optimizer' has groups of {sizes} parameters, which match no known order of this "
                     f"model's {len(parameters)}; remove 'optimizer' to convert the weights only")


def write_adamw(model, moments, metadata):
    """The state dict of an AdamW with nanoGPT's groups and the given moments."""
    parameters = dict(model.named_parameters())
    decay, no_decay = groupings({name: tuple(p.shape) for name, p in parameters.items()})[0]

    def option(name, default):
        return float(metadata.get(OPTION + name, default))
    optimizer = torch.optim.AdamW(
        [{"params": [parameters[name] for name in decay], "weight_decay": option("weight-decay", 0.1)},
         {"params": [parameters[name] for name in no_decay], "weight_decay": 0.0}],
        lr=option("lr", 6e-4), betas=(option("beta1", 0.9), option("beta2", 0.95)), eps=option("eps", 1e-8))
    step = int(metadata.get("step", 0)) - int(metadata.get("skipped", 0))  # AdamW does not count skipped steps
    for name, (first, second) in moments.items():
        optimizer.state[parameters[name]] = {"step": torch.tensor(float(step)), "exp_avg": first,
                                             "exp_avg_sq": second}
    return optimizer.state_dict()


def is_converted(key):
    return key in MODEL_KEYS or key in RUN_KEYS or key.startswith(OPTION)


def read_safetensors(path):
    path = find_model(path)
    try:
        model = Tost.from_checkpoint(path)
        with safe_open(path, framework="pt") as file:
            saved = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path}: not a complete safetensors file ({describe(error)}); give a model, a checkpoint "
                         "folder or a run") from error
    metadata = {key: value for key, value in saved.items() if is_converted(key)}
    return model, metadata, read_moments(path.with_name("optimizer.safetensors"), model, saved)


def read_moments(path, model, saved):
    """The moments saved next to the model, or None if there are none."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            step = (file.metadata() or {}).get("step")
            found = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise ValueError(f"{path}: not a complete safetensors file ({describe(error)}); convert another checkpoint, "
                         "or give the model.safetensors to convert the weights only") from error
    if step != saved.get("step"):
        raise ValueError(f"{path}: step {step}, but the model next to it has step {saved.get('step')}")
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    expected = {f"{part}.{name}": shape for part in "mv" for name, shape in shapes.items()}
    wrong = [name for name in sorted(expected.keys() | found.keys())
             if name not in found or name not in expected or found[name].shape != expected[name]]
    if wrong:
        raise ValueError(f"{path}: tensor '{wrong[0]}' is missing, not a parameter's moment, or of the wrong shape")
    return {name: (found[f"m.{name}"], found[f"v.{name}"]) for name in shapes}


# ----------------------------------------------------------------------------------------------------------
# Converting to a run


def options_of(checkpoint):
    """The trainer's options that follow from nanoGPT's 'config' and AdamW's groups."""
    config, options = checkpoint.get("config"), {}
    names = {"batch_size": "batch", "block_size": "seq", "learning_rate": "lr", "warmup_iters": "warmup",
             "lr_decay_iters": "steps", "max_iters": "steps", "grad_clip": "grad-clip"}
    if isinstance(config, dict):
        for key, name in names.items():
            if key in config:
                options.setdefault(name, config[key])
        if config.get("decay_lr") is False:
            options |= {"warmup": 0, "min-lr-frac": 1}
        elif options.get("lr") and "min_lr" in config:
            options["min-lr-frac"] = config["min_lr"] / options["lr"]
        if {"batch", "seq"} <= options.keys():
            options["total-batch"] = options["batch"] * options["seq"] * config.get("gradient_accumulation_steps", 1)
    first = checkpoint["optimizer"]["param_groups"][0]
    group = {"weight-decay": first.get("weight_decay"), "eps": first.get("eps")}
    group |= zip(("beta1", "beta2"), first.get("betas") or ())
    return options | {name: value for name, value in group.items() if value is not None}


def run_metadata(metadata, checkpoint, requested, path):
    """The __metadata__ that --resume reads, without the config."""
    found = {OPTION + name: str(value) for name, value in options_of(checkpoint).items()}
    metadata = found | metadata | {OPTION + name: value for name, value in requested.items()}
    missing = [name for name in REQUIRED if OPTION + name not in metadata]
    if missing:
        fix = "--data GLOB" if missing[0] == "data" else f"--option {missing[0]}=VALUE"
        raise ValueError(f"{path}: no value for {', '.join(missing)}, which --resume needs: give {fix}")
    total, seq, step = (int(metadata.get(key, 0)) for key in (OPTION + "total-batch", OPTION + "seq", "step"))
    seed = metadata.setdefault(OPTION + "seed", "1337")
    return {"format_version": "1", "step": "0", "tokens": str(step * total), "best_val_loss": "inf", "seed": seed,
            "data_sample": str(step * total // seq)} | metadata


# ----------------------------------------------------------------------------------------------------------
# Files


def write_pt(path, model, metadata, moments):
    config = model.config
    sizes = {key: getattr(config, key) for key in TostConfig.__dataclass_fields__ if key != "membership"}
    if config.membership != "learned":  # the published model has no such argument
        sizes["membership"] = config.membership
    state = model.state_dict()
    content = {"model": state | {HEAD: state[WTE]}, "model_args": sizes | {"dropout": 0.0},
               "iter_num": int(metadata.get("step", 0)),
               "best_val_loss": float(metadata.get("best_val_loss", math.inf)), "tost": metadata}
    torch.save(content | ({"optimizer": write_adamw(model, moments, metadata)} if moments else {}), path)


def write_moments(path, model, metadata, moments):
    tensors = {f"{part}.{name}": moments[name][i].float().contiguous() for i, part in enumerate("mv")
               for name in model.state_dict()}
    write_safetensors(path, tensors, {"format": "pt"} | model.config.metadata() | metadata | crc32(tensors))


def write_files(writers):
    """writers: {path: function that writes a file}. Writes all files to temporary paths, then renames them."""
    parts = {path: path.with_name(path.name + ".tmp") for path in writers}
    try:
        for path, write in writers.items():
            write(parts[path])
        for path, part in parts.items():
            os.replace(part, path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def to_pt(source, file):
    model, metadata, moments = read_safetensors(source)
    check_absent(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_files({file: lambda part: write_pt(part, model, metadata, moments)})
    return file, moments


def to_model(source, dest):
    model, metadata, moments, _ = read_pt(source)
    metadata = {key: value for key, value in metadata.items() if key in MODEL_KEYS}
    alone = dest.suffix == ".safetensors"
    file = dest if alone else dest / "model.safetensors"
    writers = {file: lambda part: model.save(part, metadata)}
    if moments and not alone:
        optimizer_file = file.with_name("optimizer.safetensors")
        writers = {optimizer_file: lambda part: write_moments(part, model, metadata, moments)} | writers
    for path in writers:
        check_absent(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_files(writers)
    return file, moments and not alone


def to_run(source, run_folder, requested):
    """Writes a checkpoint folder under a temporary name and renames it when it is complete."""
    model, metadata, moments, checkpoint = read_pt(source)
    if not moments:
        raise ValueError(f"{source}: no AdamW state, which --run needs: convert the weights without --run, and start "
                         "a run from them with --init")
    metadata = run_metadata(metadata, checkpoint, requested, source)
    check_absent(run_folder)
    folder = run_folder / f"step_{int(metadata['step']):08d}"
    part = folder.with_name(folder.name + ".tmp")
    created = [path for path in (part, *part.parents) if not path.exists()]  # innermost first
    part.mkdir(parents=True)
    try:
        write_moments(part / "optimizer.safetensors", model, metadata, moments)
        model.save(part / "model.safetensors", metadata)
        os.replace(part, folder)
    except BaseException:
        for path in part.iterdir():
            path.unlink()
        for path in created:
            path.rmdir()
        raise
    return folder / "model.safetensors", moments


def check_absent(path):
    if path.exists():
        raise FileExistsError(f"{path}: already exists: remove it, or choose another destination")


def parse(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("source", type=Path, help="ckpt.pt or MODEL")
    parser.add_argument("dest", type=Path, help="DEST, RUN or DEST.pt")
    parser.add_argument("--run", action="store_true", help="write a run folder for --resume")
    parser.add_argument("--data", metavar="GLOB", help="with --run: training shards")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE",
                        help="with --run: an option of the trainer, as in lr=6e-4")
    args = parser.parse_args(arguments)
    for text in args.option:
        if not re.fullmatch("[a-z0-9-]+=.+", text):
            parser.error(f"--option {text}: give NAME=VALUE")
    if (args.data or args.option) and not args.run:
        parser.error("--data and --option need --run")
    if args.run and args.dest.suffix in (".pt", ".safetensors"):
        parser.error(f"--run writes a folder: {args.dest} has the name of a file")
    return args


def name_file(error, args):
    """Adds the source's name to an error whose message names no file."""
    text = describe(error)
    named = isinstance(error, OSError) and error.filename or str(args.source) in text or str(args.dest) in text
    return error if named else ValueError(f"{args.source}: {text}")


def main(arguments=None):
    args = parse(arguments)
    requested = dict(text.split("=", 1) for text in args.option) | ({"data": args.data} if args.data else {})
    try:
        if args.dest.suffix == ".pt":
            file, moments = to_pt(args.source, args.dest)
        elif args.run:
            file, moments = to_run(args.source, args.dest, requested)
        else:
            file, moments = to_model(args.source, args.dest)
    except UNREADABLE as error:
        return fail(name_file(error, args))
    print(file)
    if not moments:
        alone = args.dest.suffix == ".safetensors"
        print("weights only: " + ("a single .safetensors file has no optimizer state" if alone else
                                  f"{args.source} has no optimizer state"))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
