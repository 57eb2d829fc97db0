"""exchange.py BINARY: the part of test_exchange.sh that needs torch, in one process.

Runs in the folder prepared by test_exchange.sh, with the trainer's runs start, shuffled, sequential and biased, and
the shards tiny_*. Prints one line per check, starting with "ok" or "FAILED".
"""

import csv
import math
import pickle
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "dev/reference"))

import numpy as np
import torch
from safetensors import safe_open

import convert
import train
from script_calls import call, check
from shards import Rng, Shards
from tost import Tost

BINARY = sys.argv[1]
EQUAL = 1e-5  # nats per token: same weights in the trainer and PyTorch
CURVE = 1e-4  # nats per token: after 24 training steps in float32 in each


def trainer(*arguments):
    """The trainer's stdout, or '' if it fails."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, errors="replace")
    return done.stdout if done.returncode == 0 else ""


def trainer_loss(model, *options):
    output = trainer("eval", "--model", model, "--data", "tiny_val_*.bin", *options)
    found = re.search(r"^loss +([0-9.]+)", output, re.M)
    return float(found[1]) if found else float("nan")


@torch.no_grad()
def python_loss(model):
    """The loss of eval --data: scores every token except the first once, in consecutive windows."""
    shards = Shards("tiny_val_*.bin", 1, model.config.vocab_size, "sequential")
    ids = torch.from_numpy(shards.read(0, 0, shards.tokens))
    T, total = model.config.block_size, 0.0
    for at in range(0, len(ids) - 1, T):
        y = ids[at + 1 : at + T + 1]
        total += model(ids[None, at : at + len(y)], y[None])[1].item() * len(y)
    return total / (len(ids) - 1)


def same_weights(a, b):
    a, b = Tost.from_checkpoint(a).state_dict(), Tost.from_checkpoint(b).state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def metadata(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def tensors_of(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def check_models():
    for run in ("start", "shuffled", "biased"):
        ours, python = trainer_loss(run), python_loss(Tost.from_checkpoint(run))
        check(f"{run}: loss {python:.7f} in PyTorch, {ours:.6f} in the trainer", abs(ours - python) <= EQUAL)


def check_round_trip():
    for run in ("shuffled", "biased"):
        status, _, err = call(convert.main, run, f"{run}.pt")
        check(f"{run} converts to ckpt.pt: {err}", status == 0)
        status, _, err = call(convert.main, f"{run}.pt", f"{run}_back")
        back = Path(f"{run}_back/model.safetensors")
        check(f"{run} converts back: {err}", status == 0 and back.is_file())
        check(f"{run}: weights unchanged", same_weights(run, back))
        check(f"{run}: the trainer computes the same loss", trainer_loss(back) == trainer_loss(run))
        before, after = metadata(convert.find_model(run)), metadata(back)
        sizes = Tost.from_checkpoint(run).config.metadata()
        keys = set(convert.MODEL_KEYS) & before.keys() | sizes.keys() | {"crc32"}
        check(f"{run}: metadata unchanged", all(after.get(key) == before[key] for key in keys))
        trained = rf"^trained +{before['step']} steps, {before['tokens']} tokens"
        check(f"{run}: info prints steps and tokens", re.search(trained, trainer("info", f"{run}_back"), re.M))
    before = trainer("sample", "--model", "shuffled", "--tokens", 20)
    after = trainer("sample", "--model", "shuffled_back", "--tokens", 20)
    check("sample generates the same text", before != "" and before == after)
    trainer("--init", "shuffled_back", "--data", "tiny_train_*.bin", "--steps", 0, "--out", "again")
    check("--init takes its weights", same_weights("shuffled", "again"))


@torch.no_grad()
def check_inspect(*runs):
    """Compares the tensors of inspect with PyTorch, on a text as long as the block size."""
    text = "3 and 2 make 5. <|x|>\n\u00e9 and 1 more\n"
    for run in runs:
        trainer("inspect", "--model", run, "--text", text, "--tokenizer", "vocab.bpe", "--out", "seen.safetensors")
        seen = tensors_of("seen.safetensors")
        model = Tost.from_checkpoint(run)
        ids, projected = seen["tokens"].long(), []
        T = len(ids)
        for block in model.transformer.h:
            block.attn.register_forward_pre_hook(lambda attn, a: projected.append(attn.project(a[0])[0]))
        logits = model(ids[None])[0][0]
        losses = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
        w = torch.stack([w.transpose(0, 1).flatten(1) for w in projected])
        pi = torch.stack([b.attn.membership(w[None].square())[0] for b, w in zip(model.transformer.h, projected)])
        check(f"inspect {run}: text, offsets and ids", bytes(seen["text"].tolist()) == text.encode()[:T]
              and seen["offsets"].tolist() == list(range(T + 1)) and T == 32)
        check(f"inspect {run}: loss of each token except the first", torch.isnan(seen["loss"][0]).item()
              and torch.allclose(seen["loss"][1:], losses, atol=EQUAL))
        for name, expected in (("pi", pi), ("w", w)):
            check(f"inspect {run}: {name} of each layer", seen[name].shape == expected.shape
                  and torch.allclose(seen[name], expected, atol=EQUAL))
        saved = metadata("seen.safetensors")
        expected = {"n_layer": "2", "n_head": "4", "n_embd": "32", "text_tokens": str(len(text.encode())),
                  "membership": model.config.membership}
        check(f"inspect {run}: metadata", {key: saved.get(key) for key in expected} == expected)


def check_membership():
    """Uniform membership, with LayerScale at 1 so that attention affects the loss."""
    losses = {}
    learned = Tost.from_checkpoint("shuffled")
    for membership in ("learned", "uniform"):
        model = Tost(replace(learned.config, membership=membership))
        model.load_state_dict(learned.state_dict())
        for block in model.transformer.h:
            torch.nn.init.ones_(block.gamma1)
        file = f"{membership}.safetensors"
        model.save(file)
        losses[membership], ours = python_loss(model), trainer_loss(file)
        check(f"{membership} membership: loss {losses[membership]:.7f} in PyTorch, {ours:.6f} in the trainer",
              abs(losses[membership] - ours) <= EQUAL)
        check(f"{membership} membership is loaded", Tost.from_checkpoint(file).config.membership == membership)
    check("membership changes the loss", abs(losses["learned"] - losses["uniform"]) > 100 * EQUAL)
    trainer("--init", "uniform.safetensors", "--data", "tiny_train_*.bin", "--steps", 2, "--out", "uniform")
    ours, python = trainer_loss("uniform"), python_loss(Tost.from_checkpoint("uniform"))
    check(f"after more training: loss {python:.7f} in PyTorch, {ours:.6f} in the trainer", abs(ours - python) <= EQUAL)
    for source, dest in (("uniform.safetensors", "uniform.pt"), ("uniform.pt", "uniform_back")):
        status, _, err = call(convert.main, source, dest)
        check(f"{source} converts to {dest}: {err}", status == 0)
    check("uniform converts back", metadata("uniform_back/model.safetensors").get("membership") == "uniform")
    check("learned membership is not in the metadata", "membership" not in metadata("learned.safetensors"))
    checkpoint = torch.load("uniform.pt", weights_only=True)
    torch.save(checkpoint | {"model_args": checkpoint["model_args"] | {"membership": "none"}}, "wrong.pt")
    refuse("membership none in the metadata", "wrong.pt", "refused/model")


def check_pt_variants():
    checkpoint = torch.load("shuffled.pt", weights_only=True)
    state, head = checkpoint["model"], convert.HEAD
    check("ckpt.pt contains the tied head, like the published state dict",
          torch.equal(state[head], state[convert.WTE]))
    untied = {name: tensor for name, tensor in state.items() if name != head}
    variants = {
        "compiled": {f"_orig_mod.{name}": tensor for name, tensor in state.items()},
        "distributed": {f"module._orig_mod.{name}": tensor for name, tensor in state.items()},
        "headless": untied,
        "compiled_headless": {f"_orig_mod.{name}": tensor for name, tensor in untied.items()},
        "doubles": {name: tensor.double() for name, tensor in state.items()},
    }
    for name, variant in variants.items():
        # like nanoGPT: with optimizer and config, and the best loss as a tensor
        extra = {"best_val_loss": torch.tensor(2.5), "config": {"lr": 6e-4}, "optimizer": {"state": {}}}
        torch.save(checkpoint | extra | {"model": variant}, f"{name}.pt")
        status, _, err = call(convert.main, f"{name}.pt", f"{name}.safetensors")
        check(f"{name} converts: {err}", status == 0)
        check(f"{name}: weights unchanged", same_weights("shuffled", f"{name}.safetensors"))
    check("best_val_loss as a tensor", "2.500000" in trainer("info", "compiled.safetensors"))
    torch.save({"model": untied}, "bare.pt")
    status, _, err = call(convert.main, "bare.pt", "bare")
    check(f"a state dict without model_args: {err}", status == 0 and same_weights("shuffled", "bare"))
    check("info of weights without metadata", re.search("^trained +(not|unknown)", trainer("info", "bare"), re.M))
    return checkpoint


def check_refusals(checkpoint):
    """Files whose content is not a ToST model."""
    state, sizes = checkpoint["model"], checkpoint["model_args"]
    head, wte, temp = convert.HEAD, convert.WTE, "transformer.h.0.attn.temp"

    def without(left_out):
        return {name: tensor for name, tensor in state.items() if name != left_out}

    wrong = {
        "differs from wte": {"model": state | {head: state[wte] + 1}, "model_args": sizes},
        "n_layer 3 in the metadata": {"model": state, "model_args": sizes | {"n_layer": 3}},
        "transformer.h.1.gamma2' is missing": {"model": without("transformer.h.1.gamma2")},
        "0.gamma1' is torch.float32 (3,)": {"model": state | {"transformer.h.0.gamma1": torch.ones(3)}},
        "extra' is not in this model": {"model": state | {"extra": torch.ones(1)}},
        "not a ToST model": {"model": without(temp)},
        "wrong.pt: no 'model'": {"weights": state},
        "ln_f.weight' in 'model' is not a dense tensor": {"model": state | {"transformer.ln_f.weight": 1.0}},
    }
    for text, content in wrong.items():
        torch.save(content, "wrong.pt")
        refuse(text, "wrong.pt", "refused/model")
    strange = {
        "0.attn.temp' has shape (), expected two dimensions": {"model": state | {temp: torch.ones(())}},
        "wte.weight' has shape (3,), expected two dimensions":
            {"model": state | {name: torch.ones(3) for name in (wte, head)}},
        "wte.weight' in 'model' is not a dense tensor":
            {"model": state | {wte: state[wte].to_sparse(), head: state[wte]}},
        "invalid literal for int() with base 10: 'x'": {"model": state, "iter_num": "x"},
        "cannot convert float infinity": {"model": state, "model_args": {"n_layer": math.inf}},
        "no 'model'": [1, 2],
    }
    for text, content in strange.items():
        torch.save(content, "wrong.pt")
        refuse(text, "wrong.pt", "refused/model")


def check_file_refusals():
    """Folders, files of other types, and damaged files."""
    Path("folder").mkdir(exist_ok=True)
    Path("empty").touch()
    Path("text.txt").write_text("step,tokens\n1,2\n")
    Path("list.json").write_text("[1, 2]")
    Path("plain.pickle").write_bytes(pickle.dumps({"model": RunsCode()}))
    Path("cut.pt").write_bytes(Path("shuffled.pt").read_bytes()[:5000])
    for name in ("empty", "text.txt", "list.json", "plain.pickle", "cut.pt"):
        refuse(f"{name}: not a complete torch.save file", name, "refused/model")
        refuse(f"{name}: not a complete safetensors file", name, "refused/x.pt")
    refuse("folder: Is a directory", "folder", "refused/model")
    refuse("a?b: No such file or directory", "a\nb", "refused/model")
    refuse("nowhere.pt: No such file", "nowhere.pt", "refused/model")
    refuse("to convert a safetensors file, give a DEST.pt", convert.find_model("shuffled"), "refused/model")
    refuse("no complete checkpoint", "nanogpt", "refused/x.pt")
    Path("cut.safetensors").write_bytes(convert.find_model("shuffled").read_bytes()[:5000])
    refuse("cut.safetensors", "cut.safetensors", "refused/x.pt")
    before = Path("shuffled.pt").read_bytes()
    with zipfile.ZipFile("shuffled.pt") as archive:
        place = max(archive.infolist(), key=lambda member: member.file_size).header_offset + 1000
    Path("flipped.pt").write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1:])
    refuse("is wrong: the file is damaged", "flipped.pt", "refused/model")
    refuse("already exists", "shuffled", "shuffled.pt")
    check("the existing file is unchanged", Path("shuffled.pt").read_bytes() == before)


class RunsCode:
    """Unpickling it calls print."""

    def __reduce__(self):
        return print, ("the file has run code",)


def refuse(text, source, dest, *arguments):
    status, _, err = call(convert.main, source, dest, *arguments)
    check(f"convert {source}: expected '{text}', got {err!r}",
          status == 1 and text in err and err.count("\n") == 1)
    left = list(Path().glob("refused*")) + list(Path().glob("*.tmp"))
    check(f"convert {source}: writes nothing", not left)


def columns(path):
    with open(f"{path}/log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


def check_training():
    """Compares log.csv of PyTorch and the trainer over more than one epoch of four shards, in both orders."""
    for order in ("shuffled", "sequential"):
        out = f"torch_{order}"
        status, _, err = call(train.main, "--init", "start", "--like", order, "--out", out, "--quiet")
        check(f"train.py --like {order}: {err}", status == 0)
        python, ours = columns(out), columns(order)
        check(f"{order}: the same columns and steps", list(python) == list(ours)
              and all(np.array_equal(python[name], ours[name]) for name in ("step", "tokens")))
        for name in ("train_loss", "val_loss", "grad_norm", "lr"):
            same_rows = np.array_equal(np.isnan(python[name]), np.isnan(ours[name]))
            worst = np.nanmax(np.abs(python[name] - ours[name]))
            limit = 1e-9 if name == "lr" else CURVE
            check(f"{order}: {name} within {worst:.1e}", same_rows and worst <= limit)
        check(f"{order}: the loss decreases", ours["train_loss"][-1] < ours["train_loss"][0] - 1)
        check(f"{order}: the trainer loads the weights and computes the same loss",
              abs(trainer_loss(out) - trainer_loss(order)) <= CURVE)
    text = trainer("sample", "--model", "torch_shuffled", "--tokens", 3)
    check("the trainer finds the tokenizer of train.py's weights", text != "")
    first, other = (columns(order)["train_loss"][0] for order in ("shuffled", "sequential"))
    check("the two orders give different losses", abs(first - other) > CURVE)
    for dtype in ("fp64", "bf16"):
        out = f"torch_{dtype}"
        status, _, err = call(train.main, "--init", "start", "--like", "shuffled", "--steps", 2,
                              "--dtype", dtype, "--out", out, "--quiet")
        loss = columns(out)["train_loss"][0] if status == 0 else float("nan")
        check(f"--dtype {dtype}: {err}", abs(loss - first) < (1e-6 if dtype == "fp64" else 2e-2))


def check_training_refusals():
    start = ("--init", "start")
    status, _, err = call(train.main, *start, "--like", "shuffled", "--out", "torch_shuffled", "--quiet")
    check(f"train.py into an existing run: {err}", status == 1 and "--overwrite" in err)
    status, _, err = call(train.main, *start, "--out", "none", "--data", "tiny_train_*.bin", "--lr", "1e-3")
    check(f"train.py without --steps: {err}", status == 1 and "--steps" in err)
    status, _, err = call(train.main, *start, "--like", "shuffled", "--out", "none", "--total-batch", 100)
    check(f"train.py --total-batch 100: {err}", status == 1 and "--total-batch 100" in err)
    check("no folder is created", not Path("none").exists())


def check_rng():
    """The published first outputs of xoshiro256++ from the state 1, 2, 3, 4."""
    rng = Rng(0, 0)
    rng.s = [1, 2, 3, 4]
    known = [41943041, 58720359, 3588806011781223, 3591011842654386]
    check("xoshiro256++", [rng.u64() for _ in known] == known)


def main():
    torch.set_num_threads(1)
    check_rng()
    check_models()
    check_inspect("start", "shuffled", "biased")
    check_round_trip()
    check_membership()
    check_inspect("uniform")
    check_refusals(check_pt_variants())
    check_file_refusals()
    check_training()
    check_training_refusals()


if __name__ == "__main__":
    main()
