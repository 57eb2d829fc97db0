"""exchange.py BINARY: the part of test_exchange.sh that needs torch, in one process.

Runs in the folder prepared by test_exchange.sh, with the trainer's runs start, shuffled, sequential and biased, and
the shards tiny_*.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "dev" / folder) for folder in ("reference", "plot")]

import numpy as np
import torch

import convert
import membership_ablation as ablation
import train
from activations import Activations
from runs import Run, read_metadata
from script_calls import BINARY, check, check_same_weights, missing, refuses_all, succeeds, trainer, write
from shards import Shards
from tost import Tost

EQUAL = 1e-5  # nats per token: same weights in the trainer and PyTorch
CURVE = 1e-4  # nats per token: after 24 training steps in float32 in each
MUON = 1e-2   # the same with Muon, whose iteration is in bfloat16 in PyTorch; 1.5e-2 for the norm on an Intel CPU


def trainer_loss(model, *options):
    output = trainer("eval", "--model", model, "--data", "tiny_val_*.bin", *options).decode()
    return float(re.search(r"^loss +([0-9.]+)", output, re.M)[1])


@torch.no_grad()
def python_loss(model, T):
    """The loss of eval --data: scores every token except the first once, in consecutive windows of T tokens."""
    shards = Shards("tiny_val_*.bin", 1, model.config.vocab_size, "sequential")
    ids = torch.from_numpy(shards.read(0, 0, shards.tokens))
    total = 0.0
    for at in range(0, len(ids) - 1, T):
        y = ids[at + 1 : at + T + 1]
        total += model(ids[None, at : at + len(y)], y[None])[1].item() * len(y)
    return total / (len(ids) - 1)


def check_losses(model, T=32):
    """The model's loss in PyTorch with windows of T tokens, after comparing it with the trainer's."""
    ours, python = trainer_loss(model, "--seq", T), python_loss(Tost.from_checkpoint(model), T)
    check(f"{model}, {T} tokens: loss {python:.7f} in PyTorch, {ours:.6f} in the trainer", abs(ours - python) <= EQUAL)
    return python


def there_and_back(name):
    """Converts a run to NAME.pt and that to NAME_back. Returns the new file."""
    succeeds(convert.main, name, f"{name}.pt")
    succeeds(convert.main, f"{name}.pt", f"{name}_back")
    source, back = convert.find_model(name), Path(f"{name}_back/model.safetensors")
    check_same_weights(source, back)
    before, after = read_metadata(source), read_metadata(back)
    keys = set(convert.MODEL_KEYS) & before.keys() | Tost.from_checkpoint(source).config.metadata().keys()
    check(f"{name}: metadata unchanged", all(after.get(key) == before[key] for key in keys))
    return back


def check_round_trip():
    for run in ("shuffled", "biased"):
        check_losses(run)
        back = there_and_back(run)
        before = read_metadata(convert.find_model(run))
        check(f"{run}: the same CRC-32", read_metadata(back)["crc32"] == before["crc32"])
        trained = rf"^trained +{before['step']} steps, {before['tokens']} tokens"
        check(f"{run}: info prints steps and tokens", re.search(trained, trainer("info", f"{run}_back").decode(), re.M))
    trainer("--init", "shuffled_back", "--data", "tiny_train_*.bin", "--steps", 0, "--out", "again")
    check_same_weights("shuffled", "again")
    for lr, used in ((9, "best"), (1e-3, "step_00000002")):
        trainer("--init", "start", "--data", "tiny_train_*.bin", "--lr", lr, "--warmup", 0, "--steps", 2, "--val-every",
                1, "--keep-best", "--out", f"lr_{lr}")
        check(f"--lr {lr}: {used} is used", convert.find_model(f"lr_{lr}").parent.name == used)


@torch.no_grad()
def check_activations(run):
    """Losses of eval, and Π of membership_ablation.py, for a text longer than the block size."""
    text = "3 and 2 make 5. <|x|>\n\u00e9 and 1 more\n"
    seen = Activations(run, text)
    T, model = len(seen.tokens), ablation.load(run)
    model(torch.from_numpy(seen.tokens)[None])
    write("seen.jsonl", json.dumps({"context": text[0], "choices": [text[1:30]], "answer": 0}) + "\n")
    trainer("eval", "--model", run, "--task", "seen.jsonl", "--json", "seen.json")
    nats = json.loads(Path("seen.json").read_text())["example"][0]["nats"][0]
    check(f"activations of {run}: text, offsets and length", seen.text == text.encode()[:T]
          and seen.text_tokens == len(text.encode()) and seen.offsets.tolist() == list(range(T + 1))
          and T == (32 if model.config.positions == "learned" else seen.text_tokens))
    check(f"activations of {run}: losses {seen.loss[1:31].sum()}, {nats} in eval", np.isnan(seen.loss[0])
          and abs(seen.loss[1:31].sum() - nats) <= 30 * EQUAL)
    check(f"activations of {run}: Π and z of each layer", seen.z.shape == (2, 4, T, 8)
          and np.allclose(seen.pi, [block.attn.pi[0] for block in model.transformer.h], atol=EQUAL))


def check_documents():
    """Activations divides a text at the same separators as encode_documents in tost/data/documents.c."""
    seen = Activations("no_positions", "one\r\n<|endoftext|> \t\n<|endoftext|>\n\nx <|endoftext|>\n")
    check(f"documents: {seen.text}", seen.text == b"one<|endoftext|><|endoftext|>\nx <|endoftext|>\n"
          and np.flatnonzero(seen.tokens == 256).tolist() == [3, 4])


def check_model(name, options, *arguments):
    """A run with options of the model: the losses agree in PyTorch; both directions of convert.py."""
    given = (f"--{key}={value}" for key, value in options.items())
    trainer(*arguments, *given, "--lr", "1e-2", "--data", "tiny_train_*.bin", "--out", name)
    check_losses(name)
    without, back = map(read_metadata, (convert.find_model("shuffled"), there_and_back(name)))
    check(f"{name}: {options} are in the metadata only of models with them",
          all(back.get(key) == value and key not in without for key, value in options.items()))


def check_options():
    """Models with each option. Added by --init, convolutions begin as the identity, memory with a scale of 0 and
    bigrams with embeddings of 0: the loss stays the same."""
    new = ("--layers", 2, "--heads", 4, "--channels", 32, "--block-size", 32, "--vocab-size", 257, "--steps", 12,
           "--batch", 2, "--total-batch", 64)
    check_model("uniform", {"membership": "uniform"}, *new)
    check_model("no_positions", {"positions": "none", "bigrams": "100"}, *new)
    check_losses("no_positions", 300)
    for name, options in ("conv", {"conv": "4"}), ("memory", {"conv": "4", "memory": "1", "bigrams": "100"}):
        check_model(f"{name}_begun", options, "--init", "shuffled", "--steps", 0)
        check(f"{name}: the loss stays the same", trainer_loss(f"{name}_begun") == trainer_loss("shuffled"))
        check_model(name, options, "--init", f"{name}_begun", "--steps", 3)
    check("memory changes the loss after 3 steps", abs(trainer_loss("memory") - trainer_loss("conv")) > 10 * EQUAL)


def check_pt_variants():
    checkpoint = torch.load("shuffled.pt", weights_only=True)
    state, head = checkpoint["model"], convert.HEAD
    check("ckpt.pt contains the tied head, like the published state dict", torch.equal(state[head], state[convert.WTE]))
    untied = {name: tensor for name, tensor in state.items() if name != head}
    # like nanoGPT: with optimizer and config, and the best loss as a tensor
    whole = checkpoint | {"best_val_loss": torch.tensor(2.5), "config": {"lr": 6e-4}, "optimizer": {"state": {}}}
    for name, content in {
        "distributed": whole | {"model": {f"module._orig_mod.{name}": tensor for name, tensor in state.items()}},
        "compiled_headless": whole | {"model": {f"_orig_mod.{name}": tensor for name, tensor in untied.items()}},
        "doubles": whole | {"model": {name: tensor.double() for name, tensor in state.items()}},
        "bare": {"model": untied},
    }.items():
        torch.save(content, f"{name}.pt")
        succeeds(convert.main, f"{name}.pt", f"{name}.safetensors")
        check_same_weights("shuffled", f"{name}.safetensors")
    text = trainer("info", "doubles.safetensors")
    check("best_val_loss as a tensor; its step is not known", b"2.500000 nats/token\n" in text)
    return checkpoint


def check_refusals(checkpoint):
    """Checkpoints whose content is not a ToST model, other files, and damaged ones."""
    def pt(content):
        torch.save(content, "wrong.pt")
        return Path("wrong.pt").read_bytes()

    before = Path("shuffled.pt").read_bytes()
    with zipfile.ZipFile("shuffled.pt") as archive:
        place = max(archive.infolist(), key=lambda member: member.file_size).header_offset + 1000
    Path("flipped.pt").write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1:])
    refuses_all("convert", model=[convert.find_model("shuffled")], state=checkpoint["model"], convert=convert,
                sizes=checkpoint["model_args"], one=torch.ones, pt=pt)
    check("the existing file is unchanged", Path("shuffled.pt").read_bytes() == before)


def check_training():
    """Compares log.csv of PyTorch and the trainer over more than one epoch of four shards, in both orders."""
    start = ("--init", "start", "--quiet", "--out")
    for order in ("shuffled", "sequential", "muon"):
        out = f"torch_{order}"
        close = MUON if order == "muon" else CURVE
        succeeds(train.main, *start, out, "--like", order)
        python, ours = Run(out), Run(order)
        for name, limit in (("step", 0), ("tokens", 0), ("lr", 1e-9), ("train_loss", close), ("val_loss", close),
                            ("grad_norm", 3 * MUON if order == "muon" else CURVE)):
            a, b = getattr(python, name), getattr(ours, name)
            check(f"{order}: {name} within {np.nanmax(np.abs(a - b)):.1e}",
                  np.allclose(a, b, rtol=0, atol=limit, equal_nan=True))
        check(f"{order}: the loss decreases", ours.train_loss[-1] < ours.train_loss[1] - 1)
        check(f"{order}: the trainer loads the weights and computes the same loss",
              abs(trainer_loss(out) - trainer_loss(order)) <= close)
    far = np.nanmax(np.abs(Run("muon").train_loss - Run("shuffled").train_loss))
    check(f"Muon differs from AdamW by {far:.1e}", far > 5 * MUON)
    trainer("sample", "--model", "torch_shuffled", "--tokens", 3)   # finds the tokenizer of train.py's weights
    first, other = (Run(order).train_loss[1] for order in ("shuffled", "sequential"))
    check("the two orders give different losses", abs(first - other) > CURVE)
    for dtype, limit in (("fp64", 1e-6), ("bf16", 2e-2)):
        out = f"torch_{dtype}"
        succeeds(train.main, *start, out, "--like", "shuffled", "--steps", 2, "--dtype", dtype)
        check(f"--dtype {dtype}", abs(Run(out).train_loss[1] - first) < limit)
    check_models(start)
    refuses_all("train")


def check_gpt2_muon(start, data):
    """Each matrix of a fused projection is orthogonalized by itself: its update has singular values near one."""
    args = train.parser.parse_args([str(a) for a in (*start, "gpt2_muon", *data, "--attention", "softmax",
                                                 "--optimizer", "muon", "--lr", 1, "--weight-decay", 0)])
    trainer = train.Trainer(args)
    qkv = trainer.model.blocks[0].attention.qkv.weight
    C, before = qkv.shape[1], qkv.detach().clone()
    trainer.step(args.warmup)
    for part in (qkv.detach() - before).split(C):
        values = torch.linalg.svdvals(part / (0.2 * C ** 0.5))
        check(f"GPT-2: singular values from {values.min():.2f} to {values.max():.2f}",
              values.max() < 1.3 and values.median() > 0.6)


def check_explained():
    """Π that is a function of the position, of the token, of neither, or of both; most tokens occur once."""
    ids, at = torch.randint(2000, (40, 32)), torch.arange(32).expand(40, 32)
    position, token, noise = torch.rand(32)[at], torch.rand(2000)[ids], torch.rand(40, 32)
    for pi, wanted in ((position, (1, 0)), (token, (0, 1)), (noise, (0, 0)), (position + token, (0.5, 0.5))):
        shares = [ablation.explained(pi[:, None].repeat(1, 3, 1), groups) for groups in (at, ids)]
        check(f"explained: {shares}, expected {wanted}", np.allclose(shares, wanted, atol=0.15))


@torch.no_grad()
def check_ablation():
    """membership_ablation.py against models in the trainer whose weights have the same effect."""
    torch.manual_seed(8)
    model, windows = Tost.from_checkpoint("memory"), 20
    attentions = [block.attn for block in model.transformer.h]
    for block in model.transformer.h:
        block.gamma1.fill_(3)
        block.attn.memory_scale.normal_()
    model.save("strong.safetensors")
    options = "--val-data", "tiny_val_*.bin", "--windows"
    succeeds(ablation.main, "strong.safetensors", *options, windows, "--binary", BINARY, "--json", "ablation.json")
    losses = json.loads(Path("ablation.json").read_text())[0]["loss"]
    check(f"each row has its own loss: {losses}", len({round(loss, 3) for loss in losses.values()}) == len(losses) - 1)
    for name, change in {"uniform": lambda: setattr(model.config, "membership", "uniform"),
                         "memory off, TSSA on": lambda: [each.memory_scale.zero_() for each in attentions],
                         "y = 0": lambda: [each.c_proj.weight.zero_() for each in attentions]}.items():
        change()
        model.save("changed.safetensors")
        check_losses("changed.safetensors")
        model.config.membership = "learned"
        ours = trainer_loss("changed.safetensors", "--limit", windows)
        check(f"{name}: {losses[name]:.6f}, in the trainer {ours:.6f}", abs(losses[name] - ours) <= EQUAL)
    model = ablation.load("strong.safetensors")
    x, y = map(torch.from_numpy, Shards("tiny_val_*.bin", 32, 257, "sequential").batch(range(windows)))
    _, own = ablation.measure(model, x, y)
    check("its own Π changes nothing", ablation.measure(model, x, y, own)[0] == losses["own Π"])
    check_explained()
    out = succeeds(ablation.main, "uniform", "uniform", *options, windows)
    found = re.findall(r"^(?:own|uni|mean|another).* ([0-9.]+) ± 0.0000 ", out, re.M)
    check(f"all Π of a uniform model are uniform: {out}", len(found) == 5 and len(set(found)) == 1)
    refuses_all("ablation")


def check_models(start):
    """--by-position against eval --by-position with the same weights; GPT-2 on the same data."""
    data = ("--like", "shuffled", "--val-data", "tiny_train_000001.bin", "--batch", 1, "--total-batch", 32,
            "--val-windows", 0)
    succeeds(train.main, *start, "torch_bins", *data, "--steps", 1, "--by-position", "torch.json")
    trainer("eval", "--model", "torch_bins", "--data", "tiny_train_000001.bin", "--by-position", "--json", "bins.json")
    python, ours = (json.loads(Path(name).read_text())["position"] for name in ("torch.json", "bins.json"))
    check("by position: the same bins and losses", [b["first"] for b in python] == [b["first"] for b in ours]
          and all(abs(a["loss"] - b["loss"]) <= 0.01 for a, b in zip(python, ours)))   # eval has a shorter last window
    recall = json.loads(Path("torch.json").read_text())["recall"]
    check("rare pairs of tokens, new ones and repeated ones, are some of the targets", len(recall) == 4
          and 0 < sum(bin["tokens"] for bin in recall) < python[0]["tokens"] * 32 and recall[0]["tokens"] > 0)
    succeeds(train.main, *start, "gpt2", *data, "--steps", 40, "--attention", "softmax", "--by-position", "gpt2.json")
    check_gpt2_muon(start, data)
    log, bins = Run("gpt2"), json.loads(Path("gpt2.json").read_text())["position"]
    check("GPT-2: the loss decreases", log.train_loss[-5:].mean() < log.train_loss[1] - 1)
    total = sum(b["loss"] * b["tokens"] for b in bins) / sum(b["tokens"] for b in bins)
    check("GPT-2: the loss by position is that of the validation", abs(total - log.val_loss[-1]) < 1e-6)


def main():
    torch.set_num_threads(1)
    check_round_trip()
    check_options()
    check_ablation()
    if not missing("activations.py", "tiktoken"):
        for run in ("shuffled", "biased", "uniform", "conv", "memory", "no_positions"):
            check_activations(run)
        check_documents()
    check_refusals(check_pt_variants())
    check_training()


if __name__ == "__main__":
    main()
