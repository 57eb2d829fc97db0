"""A PyTorch checkpoint to one that the trainer reads, and back.

    convert.py ckpt.pt DEST         DEST/model.safetensors, and DEST/optimizer.safetensors where ckpt.pt has
                                    AdamW's moments; or DEST itself, the weights alone, where it ends in
                                    .safetensors: for --init, sample --model and eval --model
    convert.py ckpt.pt RUN --run [--data GLOB] [--option NAME=VALUE]…
                                    RUN/step_N: a run that `train --resume --out RUN` goes on with
    convert.py MODEL DEST.pt        MODEL as for --model: a safetensors file, a checkpoint folder or a run

A ckpt.pt is what nanoGPT and the published ToST code save: {'model': state dict, 'model_args': sizes, …}.
Names may carry the prefix of torch.compile (_orig_mod.) or of DistributedDataParallel (module.), and
lm_head.weight may be there, equal to wte, or not. Tensors become float32. The way back writes lm_head.weight
too, as the published model's load_state_dict expects it, and 'model_args' with dropout 0.

'optimizer' is the state dict of a torch.optim.AdamW. It knows its parameters by number only: first those that
decay, then those that do not, each in the order of the state dict. What decays is told by the groups' sizes and
by the shapes: in nanoGPT all of two dimensions or more, in dev/reference/tost.py embeddings and the weights of
Linear layers; one group of all is known too. The way back writes nanoGPT's groups. In the trainer temp and
denom_bias never decay, whatever group they were in.

Beside weights and moments go over: updates done (iter_num), best validation loss, tokens seen, tokenizer, and
what else the trainer knows of its runs, so that a run that comes back is the run that went, bit for bit. A
ckpt.pt of others names no shards and its data came in another order: with --run, --data names shards, the
order is the trainer's from the place that the number of updates makes, and the trainer's options follow from
nanoGPT's 'config', where it is there, and from AdamW's groups; --option says or overrules the rest. Needs Python
3.10, torch and safetensors.
"""

import argparse
import math
import os
import re
import sys
import warnings
import zipfile
import zlib
from pathlib import Path

try:
    import torch
    from safetensors import SafetensorError, safe_open
except ImportError as error:
    sys.exit(f"{error}: pip install torch safetensors numpy")

from tost import HEAD, WTE, Tost, TostConfig, find_model, write_safetensors

PREFIX = re.compile(r"^(_orig_mod\.|module\.)+")
UNREADABLE = (OSError, ValueError, TypeError, RuntimeError)
CARRIED = ("step", "tokens", "best_val_loss", "tokenizer", "tokenizer_hash")  # of __metadata__
OF_A_RUN = ("format_version", "data_sample", "seed", "skipped", "skipped_in_a_row", "last_losses", "last_grad_norms",
            "open_row")  # and all options
OPTION = "option."
RUN_NEEDS = ("data", "steps", "batch", "seq", "total-batch", "lr", "warmup", "min-lr-frac", "weight-decay", "beta1",
             "beta2", "eps", "grad-clip")  # without these a resumed run would take them from the starter preset


def damaged_member(path):
    """Of the archive that torch.save writes: what has another checksum than the archive says. torch.load does not
    look at them. None of a whole one, and of the older format, which has none."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def load_pt(path):
    """What torch.load makes of it. Only tensors and plain values are unpickled: nothing in the file runs. What is no
    such file may raise anything, in many lines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        damaged = damaged_member(path)
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise
        raise ValueError(f"{path}: is no whole file of torch.save, or holds more than tensors and plain values: "
                         "{'model': state dict, 'model_args': sizes} is wanted") from error
    if damaged:
        raise ValueError(f"{path}: {damaged} has another checksum than it was saved with: the file is damaged (or saved "
                         "without checksums: torch.serialization.set_crc32_options)")
    return checkpoint


def whole(path, name, value):
    """A number of updates or a size, as text."""
    try:
        if int(value) == value and value >= 0:
            return str(int(value))
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{path}: '{name}' is {value!r}: a whole number is wanted")


def read_pt(path):
    """Model and facts of a ckpt.pt."""
    checkpoint = load_pt(path)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        hint = "; a safetensors file goes to a DEST.pt" if path.suffix == ".safetensors" else ""
        raise ValueError(f"{path}: holds no 'model': {{'model': state dict, 'model_args': sizes}} is wanted{hint}")
    sizes, ours = (checkpoint.get(key) or {} for key in ("model_args", "tost"))
    if not isinstance(sizes, dict) or not isinstance(ours, dict):
        raise ValueError(f"{path}: 'model_args' is no dictionary of sizes")
    state = {PREFIX.sub("", str(name)): tensor for name, tensor in checkpoint["model"].items()}
    if len(state) != len(checkpoint["model"]):
        raise ValueError(f"{path}: holds tensors that have one name but for their prefixes")
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise ValueError(f"{path}: '{name}' in 'model' is no tensor of all its values")
    stated = {key: value if isinstance(value, str) else whole(path, key, value) for key, value in sizes.items()
              if key in TostConfig.__dataclass_fields__ and value is not None}
    model = Tost.from_state(state, stated, path)
    facts = {key: str(value) for key, value in ours.items() if is_carried(key)}
    for key in {"step", "tokens"} & facts.keys():
        if not facts[key].isdecimal():
            raise ValueError(f"{path}: '{key}' is {facts[key]!r}: a whole number is wanted")
    if "iter_num" in checkpoint:
        facts["step"] = whole(path, "iter_num", checkpoint["iter_num"])
    if "best_val_loss" in checkpoint:
        try:
            facts["best_val_loss"] = f"{float(checkpoint['best_val_loss']):.17g}"
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path}: 'best_val_loss' is no number") from error
    moments = read_adamw(checkpoint, model, list(state), path)
    if moments and "step" not in facts:
        facts["step"] = str(int(next(iter(checkpoint["optimizer"]["state"].values())).get("step", 0)))
    return model, facts, moments, checkpoint


# ----------------------------------------------------------------------------------------------------------
# AdamW's moments: {name: (exp_avg, exp_avg_sq)}


def groupings(shapes):
    """The ways in which a model's parameters are numbered: lists of groups, which are lists of names."""
    names = list(shapes)
    linear = [name for name in names if len(shapes[name]) == 2 and name.endswith(".weight")]
    wide = [name for name in names if len(shapes[name]) >= 2]
    return [[wide, [name for name in names if name not in wide]],      # nanoGPT
            [linear, [name for name in names if name not in linear]],  # dev/reference/tost.py
            [names]]


def idle(name, model):
    """Whether a parameter never gets a gradient: AdamW then holds nothing of it, which is as good as zeros."""
    return model.config.membership == "uniform" and name.endswith((".attn.temp", ".attn.denom_bias"))


def read_adamw(checkpoint, model, names, path):
    """The moments; None where there are none. names: the parameters in the order of the state dict."""
    optimizer = checkpoint.get("optimizer") or {}
    if not isinstance(optimizer, dict) or not optimizer.get("state"):
        return None
    try:
        pairs = {number: (one["exp_avg"], one["exp_avg_sq"]) for number, one in optimizer["state"].items()}
        shapes = {number: [tuple(moment.shape) for moment in pair] for number, pair in pairs.items()}
        numbers = [list(group["params"]) for group in optimizer["param_groups"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: 'optimizer' is no complete state of AdamW: {error!r}") from error
    parameters = dict(model.named_parameters())
    for groups in groupings({name: tuple(parameters[name].shape) for name in names}):
        if [len(group) for group in groups] != [len(group) for group in numbers]:
            continue
        number = dict(zip(sum(groups, []), sum(numbers, [])))
        if all(shapes.get(number[name]) == [tuple(p.shape)] * 2 or (number[name] not in shapes and idle(name, model))
               for name, p in parameters.items()):
            return {name: pairs.get(number[name], (torch.zeros_like(p.data),) * 2) for name, p in parameters.items()}
    sizes = " and ".join(str(len(group)) for group in numbers)
    raise ValueError(f"{path}: 'optimizer' has moments of {sizes} parameters, which fit this model's {len(parameters)} "
                     "in no order that is known: a ckpt.pt without 'optimizer' converts")


def write_adamw(model, moments, facts):
    """The state dict of an AdamW of nanoGPT's groups, which goes on from the moments."""
    parameters = dict(model.named_parameters())
    decay, keep = groupings({name: tuple(p.shape) for name, p in parameters.items()})[0]

    def option(name, default):
        return float(facts.get(OPTION + name, default))
    optimizer = torch.optim.AdamW(
        [{"params": [parameters[name] for name in decay], "weight_decay": option("weight-decay", 0.1)},
         {"params": [parameters[name] for name in keep], "weight_decay": 0.0}],
        lr=option("lr", 6e-4), betas=(option("beta1", 0.9), option("beta2", 0.95)), eps=option("eps", 1e-8))
    made = int(facts.get("step", 0)) - int(facts.get("skipped", 0))  # AdamW counts the updates that were made
    for name, (first, second) in moments.items():
        optimizer.state[parameters[name]] = {"step": torch.tensor(float(made)), "exp_avg": first,
                                             "exp_avg_sq": second}
    return optimizer.state_dict()


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_carried(key):
    return key in CARRIED or key in OF_A_RUN or key.startswith(OPTION)


def read_safetensors(path):
    path = find_model(path)
    try:
        model = Tost.from_checkpoint(path)
        with safe_open(path, framework="pt") as file:
            stated = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path}: is no whole safetensors file ({first_line(error)}): a model, a checkpoint folder or "
                         "a run is wanted") from error
    facts = {key: value for key, value in stated.items() if is_carried(key)}
    return model, facts, read_moments(path.with_name("optimizer.safetensors"), model, stated)


def read_moments(path, model, stated):
    """Those of the checkpoint that the model is of; None where there are none."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            step = (file.metadata() or {}).get("step")
            held = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise ValueError(f"{path}: is no whole safetensors file ({first_line(error)}): take another checkpoint, or the "
                         "model.safetensors without it") from error
    if step != stated.get("step"):
        raise ValueError(f"{path}: is of step {step}, the model beside it of step {stated.get('step')}")
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    wanted = {f"{part}.{name}": shape for part in "mv" for name, shape in shapes.items()}
    wrong = [name for name in sorted(wanted.keys() | held.keys())
             if name not in held or name not in wanted or held[name].shape != wanted[name]]
    if wrong:
        raise ValueError(f"{path}: tensor '{wrong[0]}' is missing, foreign or of another shape than the model's")
    return {name: (held[f"m.{name}"], held[f"v.{name}"]) for name in shapes}


# ----------------------------------------------------------------------------------------------------------
# A run to go on with


def options_of(checkpoint):
    """The trainer's options as far as nanoGPT's 'config' and AdamW's groups tell them."""
    config, options = checkpoint.get("config"), {}
    names = {"batch_size": "batch", "block_size": "seq", "learning_rate": "lr", "warmup_iters": "warmup",
             "lr_decay_iters": "steps", "max_iters": "steps", "grad_clip": "grad-clip"}
    if isinstance(config, dict):
        for theirs, name in names.items():
            if theirs in config:
                options.setdefault(name, config[theirs])
        if config.get("decay_lr") is False:
            options |= {"warmup": 0, "min-lr-frac": 1}
        elif options.get("lr") and "min_lr" in config:
            options["min-lr-frac"] = config["min_lr"] / options["lr"]
        if {"batch", "seq"} <= options.keys():
            options["total-batch"] = options["batch"] * options["seq"] * config.get("gradient_accumulation_steps", 1)
    first = checkpoint["optimizer"]["param_groups"][0]
    said = {"weight-decay": first.get("weight_decay"), "eps": first.get("eps")}
    said |= zip(("beta1", "beta2"), first.get("betas") or ())
    return options | {name: value for name, value in said.items() if value is not None}


def run_facts(facts, checkpoint, asked, path):
    """All that --resume wants to read beside config and tensors."""
    found = {OPTION + name: str(value) for name, value in options_of(checkpoint).items()}
    facts = found | facts | {OPTION + name: value for name, value in asked.items()}
    missing = [name for name in RUN_NEEDS if OPTION + name not in facts]
    if missing:
        way_out = "--data GLOB" if missing[0] == "data" else f"--option {missing[0]}=VALUE"
        raise ValueError(f"{path}: does not say {', '.join(missing)}, which a run goes on with: give {way_out}")
    total, seq, step = (int(facts.get(key, 0)) for key in (OPTION + "total-batch", OPTION + "seq", "step"))
    seed = facts.setdefault(OPTION + "seed", "1337")
    return {"format_version": "1", "step": "0", "tokens": str(step * total), "best_val_loss": "inf", "seed": seed,
            "data_sample": str(step * total // seq)} | facts


# ----------------------------------------------------------------------------------------------------------
# Files


def write_pt(path, model, facts, moments):
    config = model.config
    sizes = {key: getattr(config, key) for key in TostConfig.__dataclass_fields__ if key != "membership"}
    if config.membership != "learned":  # the published model has no such argument
        sizes["membership"] = config.membership
    state = model.state_dict()
    content = {"model": state | {HEAD: state[WTE]}, "model_args": sizes | {"dropout": 0.0},
               "iter_num": int(facts.get("step", 0)),
               "best_val_loss": float(facts.get("best_val_loss", math.inf)), "tost": facts}
    torch.save(content | ({"optimizer": write_adamw(model, moments, facts)} if moments else {}), path)


def write_moments(path, model, facts, moments):
    tensors = {f"{part}.{name}": moments[name][i].float().contiguous() for i, part in enumerate("mv")
               for name in model.state_dict()}
    crc = 0
    for tensor in tensors.values():
        crc = zlib.crc32(tensor.numpy().data, crc)
    write_safetensors(path, tensors, {"format": "pt"} | model.config.metadata() | facts | {"crc32": f"{crc:08x}"})


def place(writers):
    """Writes {path: function that writes a file}, each beside its place, then gives all their names."""
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
    model, facts, moments = read_safetensors(source)
    absent(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    place({file: lambda part: write_pt(part, model, facts, moments)})
    return file, moments


def to_model(source, dest):
    model, facts, moments, _ = read_pt(source)
    facts = {key: value for key, value in facts.items() if key in CARRIED}
    alone = dest.suffix == ".safetensors"
    file = dest if alone else dest / "model.safetensors"
    writers = {file: lambda part: model.save(part, facts)}
    if moments and not alone:
        beside = file.with_name("optimizer.safetensors")
        writers = {beside: lambda part: write_moments(part, model, facts, moments)} | writers
    for path in writers:
        absent(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    place(writers)
    return file, moments and not alone


def to_run(source, run, asked):
    """The checkpoint's folder takes its name when it is whole."""
    model, facts, moments, checkpoint = read_pt(source)
    if not moments:
        raise ValueError(f"{source}: holds no state of AdamW to go on with: without --run the weights convert, and "
                         "--init begins with them")
    facts = run_facts(facts, checkpoint, asked, source)
    absent(run)
    folder = run / f"step_{int(facts['step']):08d}"
    part = folder.with_name(folder.name + ".tmp")
    made = [path for path in (part, *part.parents) if not path.exists()]  # innermost first
    part.mkdir(parents=True)
    try:
        write_moments(part / "optimizer.safetensors", model, facts, moments)
        model.save(part / "model.safetensors", facts)
        os.replace(part, folder)
    except BaseException:
        for path in part.iterdir():
            path.unlink()
        for path in made:
            path.rmdir()
        raise
    return folder / "model.safetensors", moments


def absent(path):
    """What is there already stays."""
    if path.exists():
        raise FileExistsError(f"{path}: exists already: remove it, or choose another destination")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--run", action="store_true", help="make a run folder that --resume goes on with")
    parser.add_argument("--data", metavar="GLOB", help="of --run: shards to go on with")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE",
                        help="of --run: an option of the trainer's, as in lr=6e-4")
    args = parser.parse_args(arguments)
    for text in args.option:
        if not re.fullmatch("[a-z0-9-]+=.+", text):
            parser.error(f"--option {text}: NAME=VALUE is wanted")
    if (args.data or args.option) and not args.run:
        parser.error("--data and --option are of --run")
    if args.run and args.dest.suffix in (".pt", ".safetensors"):
        parser.error(f"--run makes a folder, and {args.dest} is named as a file")
    return args


def failed(error, args):
    """One line on stderr that names the file. Returns the exit status."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or args.source}: {error.strerror}"
    elif str(args.source) not in text and str(args.dest) not in text:
        text = f"{args.source}: {text}"
    print("".join(c if c.isprintable() else "?" for c in text), file=sys.stderr)
    return 1


def main(arguments=None):
    args = parse(arguments)
    asked = dict(text.split("=", 1) for text in args.option) | ({"data": args.data} if args.data else {})
    try:
        if args.dest.suffix == ".pt":
            file, moments = to_pt(args.source, args.dest)
        elif args.run:
            file, moments = to_run(args.source, args.dest, asked)
        else:
            file, moments = to_model(args.source, args.dest)
    except UNREADABLE as error:
        return failed(error, args)
    try:
        print(file)
        if not moments:
            alone = args.dest.suffix == ".safetensors"
            print("the weights alone: " + ("a file by itself has no place for the optimiser's state" if alone else
                                           f"{args.source} has no optimiser's state"))
        sys.stdout.flush()
    except OSError as error:  # the files stand
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered would fail again at the end
        print(f"stdout cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
