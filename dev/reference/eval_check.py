"""Checks the trainer's `eval` example by example, with a small model whose parameters are all randomized.

    eval_check.py --binary ./train_gpt_tost --vocab vocab.bpe --lambada lambada_test.jsonl
                  --hellaswag hellaswag_val.jsonl [--examples 40] [--model PATH]

The expected values come from the model in PyTorch (tost.py) in float64, with one forward pass per continuation, and
from tiktoken with the merges of vocab.bpe. Texts are prepared as in lm-evaluation-harness and the published ToST
scripts. CBT examples are made from LAMBADA texts, since CBT's own files cannot be redistributed, and HellaSwag's
original format from the prepared one. The script compares token counts, log-likelihoods and all accuracies of every
example, every window of --data in both modes, and the totals. Exit status 1 on any disagreement.
"""

import argparse
import codecs
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from golden import randomize
from gpt2_encoding import gpt2_encoding
from tost import Tost, TostConfig, write_safetensors

TOLERANCE = 1e-6  # |error| / (1 + |value|) of a log-likelihood
WITHIN = 10  # tokens generated for LAMBADA's accuracy_within_10
# Like the trainer's JSON: U+FFFD for each byte that is not part of a valid character.
codecs.register_error("each_byte", lambda e: ("\ufffd" * (e.end - e.start), e.end))


class Checker:
    def __init__(self, model, encoding, limit):
        self.model, self.encoding, self.limit = model, encoding, limit
        self.compared, self.wrong, self.worst = 0, 0, 0.0

    def ids(self, text):
        return self.encoding.encode_ordinary(text)

    def pair(self, context, choice):
        """Ids of the context and of the choice after it, as in lm-evaluation-harness, which truncates on the left."""
        spaces = len(context) - len(context.rstrip())
        context, choice = context[:len(context) - spaces], context[len(context) - spaces:] + choice
        first, whole = self.ids(context), self.ids(context + choice)
        choice = whole[len(first):]
        return first[-(self.limit + 1 - len(choice)):], choice

    def equal(self, what, got, want):
        self.compared += 1
        if got != want:
            self.wrong += 1
            print(f"  {what}: {got!r} from the trainer, expected {want!r}")

    def close(self, what, got, want):
        self.compared += 1
        error = abs(got - want) / (1 + abs(want))
        self.worst = max(self.worst, error)
        if not error <= TOLERANCE:
            self.wrong += 1
            print(f"  {what}: {got!r} from the trainer, expected {want!r}")

    @torch.no_grad()
    def nats(self, context, ending):
        """Negative log-likelihood of the ending given the context, both lists of ids."""
        text = context + ending
        logits, _ = self.model(torch.tensor([text[:-1]]))
        chosen = torch.log_softmax(logits[0, len(context) - 1:].double(), -1)
        return -chosen[range(len(ending)), ending].sum().item()

    @torch.no_grad()
    def greedy(self, context, n):
        text = list(context)
        for _ in range(n):
            logits, _ = self.model(torch.tensor([text]), last_only=True)
            text.append(logits[0, 0, : self.encoding.n_vocab].argmax().item())
        return text[len(context):]

    def text_of(self, ids):
        return b"".join(self.encoding.decode_single_token_bytes(i) for i in ids)


def check_lambada(c, example, got):
    text = json.loads(example)["text"]
    context, word = text.rstrip().rsplit(" ", 1)
    context, target = c.pair(context, " " + word)
    c.equal("context", got["context"], len(context))
    c.equal("tokens", got["tokens"], [len(target)])
    c.close("nats", got["nats"][0], c.nats(context, target))
    c.equal("accuracy", got["accuracy"], c.greedy(context, len(target)) == target)
    prompt, word = ("\n" + text.replace("“", '"').replace("”", '"').strip()).rsplit(" ", 1)
    prompt = c.ids(prompt)[-(c.limit + 1 - WITHIN):]
    written = c.text_of(c.greedy(prompt, WITHIN)).decode("utf-8", "each_byte")
    c.equal("prompt", got["prompt"], len(prompt))
    c.equal("written", got["written"], written)
    c.equal("accuracy_within_10", got["accuracy_within_10"], word.lower() in written.lower())


def check_choices(c, got, pairs, label, sizes):
    """pairs: ids of (context, choice). sizes: {accuracy rule: divisor of each choice's loss}."""
    nats = [c.nats(*pair) for pair in pairs]
    c.equal("context", got["context"], min(len(context) for context, _ in pairs))
    c.equal("tokens", got["tokens"], [len(choice) for _, choice in pairs])
    c.equal("label", got["label"], label)
    for i, (want, loss) in enumerate(zip(nats, got["nats"], strict=True)):
        c.close(f"nats of choice {i}", loss, want)
    for rule, size in sizes.items():
        scores = [loss / by for loss, by in zip(nats, size, strict=True)]
        c.equal(rule, got[rule], scores.index(min(scores)) == label)


def solvable(c, examples, limit):
    """Examples that the model solves: the last word is the one that it generates, unchanged or in capitals."""
    made = []
    for example in examples:
        context = json.loads(example)["text"].rstrip().rsplit(" ", 1)[0]
        word = c.text_of(c.greedy(c.ids(context)[-(c.limit - WITHIN):], 1))
        if word[:1] == b" " and word[1:].isalpha() and len(made) < limit:
            made += [json.dumps({"text": context + w}) for w in (word.decode(), word.decode().upper())]
    return made


def prepare(text):
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def check_hellaswag(c, example, got):
    example = json.loads(example)
    context, endings = example["ctx"], example["endings"]
    if "ctx_a" in example:
        context = prepare(f"{example['activity_label']}: {example['ctx_a']} {example['ctx_b'].capitalize()}")
        endings = list(map(prepare, endings))
    pairs = [c.pair(context, " " + ending) for ending in endings]
    check_choices(c, got, pairs, example["label"],
                  {"acc": [1] * 4, "acc_norm": list(map(len, endings)), "acc_token": [len(ids) for _, ids in pairs]})


def make_original(hellaswag):
    """Examples in HellaSwag's original format, with the marks and spaces that it contains."""
    examples = []
    for i, line in enumerate(hellaswag):
        example = json.loads(line)
        label, text = example["ctx"].split(": ", 1)
        a, _, b = text.rpartition(". ")
        marks = [(" [title] ", ""), ("[header] ", " [step] "), (" [substeps] x", "  [b\n]")][i % 3]
        example |= {"activity_label": label, "ctx_a": marks[0] + a + ".", "ctx_b": ["", "élan VITAL ÀÉ", b][i // 3 % 3]}
        example["endings"] = [ending + marks[1] for ending in example["endings"]]
        examples.append(json.dumps(example))
    return examples


def check_cbt(c, example, got):
    lines = example.split("\n")
    query, answer, _, candidates = lines[20].split("\t")
    candidates = candidates.split("|")
    context = " ".join(line.split(" ", 1)[1] for line in lines[:20])
    query = query.split(" ", 1)[1]
    whole = [[c.encoding.eot_token] + c.ids(context + " " + query.replace("XXXXX", word)) for word in candidates]
    common = 0  # length of the common prefix, which is the context
    while common < min(map(len, whole)) - 1 and len({tuple(w[: common + 1]) for w in whole}) == 1:
        common += 1
    pairs = [(ids[:common][-(c.limit + 1 - len(ids[common:])):], ids[common:]) for ids in whole]
    check_choices(c, got, pairs, candidates.index(answer), {"accuracy": [1] * 10})


def make_cbt(lambada, n):
    """Examples in CBT's format: twenty lines of text, then a question with one word removed."""
    words = " ".join(json.loads(line)["text"] for line in lambada[: 4 * n]).split()
    examples = []
    for i in range(n):
        part = words[i * 150:(i + 1) * 150]
        lines = [f"{k + 1} " + " ".join(part[7 * k: 7 * k + 7]) for k in range(20)]
        candidates = sorted({w for w in part if w.isalpha()})[:10]
        query = " ".join(part[140:145] + ["XXXXX"] + part[146:])
        lines.append(f"21 {query}\t{candidates[i % 10]}\t\t{'|'.join(candidates)}")
        examples.append("\n".join(lines) + "\n")
    return examples


def run_eval(args, folder, *options):
    out = folder / "eval.json"
    out.unlink(missing_ok=True)
    command = [args.binary, "eval", "--model", args.model, "--json", out, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return json.loads(out.read_text(encoding="utf-8"))


def check_task(c, args, folder, task, examples, check):
    path = folder / f"{task}.txt"
    path.write_text("\n".join(examples) + "\n", encoding="utf-8")
    result = run_eval(args, folder, "--task", task, path, "--tokenizer", args.vocab, "--seq", c.limit)
    c.equal(f"{task}: examples", result["examples"], len(examples))
    for example, got in zip(examples, result["example"], strict=True):
        before = c.wrong
        check(c, example, got)
        if c.wrong > before:
            print(f"  … in {task}, line {got['line']}")
    got = result["example"]
    solved = sum(g["accuracy" if task != "hellaswag" else "acc"] for g in got)
    c.equal(f"{task}: some examples are solved, some not", 0 < solved < len(got), True)
    right = [g["label"] if "label" in g else 0 for g in got]
    nats, tokens = sum(g["nats"][r] for g, r in zip(got, right)), sum(g["tokens"][r] for g, r in zip(got, right))
    c.close(f"{task}: loss", result["loss"], nats / tokens)
    c.close(f"{task}: perplexity per token", result["perplexity_token"], math.exp(nats / tokens))
    if task == "lambada":
        c.close(f"{task}: perplexity per word", result["perplexity_word"], math.exp(nats / len(got)))
    for rule in [key for key in result if key.startswith("acc") and not key.endswith("_95")]:
        c.close(f"{task}: {rule}", result[rule], sum(g[rule] for g in got) / len(got))
        low, high = result[rule + "_95"]
        c.equal(f"{task}: {rule} within its interval", 0 <= low <= result[rule] <= high <= 1, True)


def check_data(c, args, folder, text):
    ids = c.ids(text)
    shard = folder / "data.bin"
    np.array(ids, dtype="<u2").tofile(shard)
    starts = {}
    for options in (["--seq", 37], ["--seq", 37, "--stride", 11], ["--seq", 37, "--stride", 1, "--batch", 5],
                    ["--seq", 37, "--windows", 9, "--seed", 1], ["--seq", 37, "--windows", 9, "--seed", 2]):
        result = run_eval(args, folder, "--data", shard, "--tokenizer", args.vocab, *options)
        seen, nats = [], 0.0
        for w in result["window"]:
            first = w["start"] + w["skip"] + 1
            want = c.nats(ids[w["start"]:first], ids[first:first + w["tokens"]])
            c.close(f"{options}: window at {w['start']}", w["nats"], want)
            seen += range(first, first + w["tokens"])
            nats += want
        c.close(f"{options}: loss", result["loss"], nats / len(seen))
        if "--windows" in options:
            c.equal(f"{options}: windows", [w["tokens"] for w in result["window"]], [37] * 9)
            starts[options[-1]] = [w["start"] for w in result["window"]]
        else:
            c.equal(f"{options}: every token scored once", seen, list(range(1, len(ids))))
            text_bytes = len(c.text_of(ids[1:]))
            c.close(f"{options}: bits per byte", result["bits_per_byte"], nats / math.log(2) / text_bytes)
    c.equal("different seeds give different windows", starts[1] != starts[2], True)


def make_model(path, vocab_size):
    torch.manual_seed(1)
    model = Tost(TostConfig(2, 3, 24, 96, vocab_size, True))
    randomize(model, torch.Generator().manual_seed(2))
    write_safetensors(path, model.state_dict(), model.config.metadata())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("train_gpt_tost"), help="default: ./train_gpt_tost")
    for name, text in (("vocab", "GPT-2's vocab.bpe"), ("lambada", "see dev/data"), ("hellaswag", "see dev/data")):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="FILE", help=text)
    parser.add_argument("--model", type=Path, help="model to check with (default: a small random one)")
    parser.add_argument("--examples", type=int, default=40, help="examples per task (default: 40)")
    args = parser.parse_args()
    args.binary = args.binary.resolve()
    encoding = gpt2_encoding(args.vocab)
    lambada = args.lambada.read_text(encoding="utf-8").split("\n")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if args.model is None:
            args.model = folder / "model.safetensors"
            make_model(args.model, encoding.n_vocab + 7)
        model = Tost.from_checkpoint(args.model)
        c = Checker(model.double(), encoding, model.config.block_size)
        lambada_examples = lambada[: args.examples]
        lambada_examples += solvable(c, lambada_examples, 8)
        hellaswag = args.hellaswag.read_text(encoding="utf-8").split("\n")
        for task, examples, check in (("lambada", lambada_examples, check_lambada),
                                      ("hellaswag", hellaswag[: args.examples], check_hellaswag),
                                      ("hellaswag", make_original(hellaswag[: args.examples]), check_hellaswag),
                                      ("cbt", make_cbt(lambada, args.examples // 4 + 1), check_cbt)):
            before = c.compared, c.wrong
            check_task(c, args, folder, task, examples, check)
            print(f"{task}: {c.compared - before[0]} comparisons, {c.wrong - before[1]} wrong")
        before = c.compared, c.wrong
        check_data(c, args, folder, json.loads(lambada[0])["text"] + json.loads(lambada[1])["text"])
        print(f"data: {c.compared - before[0]} comparisons, {c.wrong - before[1]} wrong")
    print(f"{c.compared} comparisons, {c.wrong} wrong; largest relative error of a log-likelihood {c.worst:.1e}")
    return c.wrong != 0


if __name__ == "__main__":
    sys.exit(main())
