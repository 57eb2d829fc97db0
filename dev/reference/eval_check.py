"""Checks the trainer's `eval` example by example, with a small model whose parameters are all randomized.

    eval_check.py --binary ./train_gpt_tost --vocab vocab.bpe --lambada lambada_test.jsonl
                  --hellaswag hellaswag_val.jsonl [--examples 40] [--model PATH]

The expected values come from the model in PyTorch (tost.py) in float64, with one forward pass per continuation, and
from tiktoken with the merges of vocab.bpe. Examples are those of dev/data/evalset.py; CBT's are made from LAMBADA texts,
since its own files cannot be redistributed. The script compares token counts, log-likelihoods and all accuracies of every
example, every window of --data in both modes, and the totals. Exit status 1 on any disagreement.
"""

import argparse
import codecs
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "data"))
import evalset
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


def check_example(c, example, got):
    """The choices are those of lm-evaluation-harness, which moves white space at the end of a context to them."""
    context, choices = example["context"], example["choices"]
    context = context[:len(context.rstrip(" \t\r\n"))]
    eot = context.startswith("<|endoftext|>")
    def ids(text):
        return [c.encoding.eot_token] + c.ids(text.removeprefix("<|endoftext|>\n")) if eot else c.ids(text)
    first = ids(context)
    choices = [ids(example["context"] + choice)[len(first):] for choice in choices]
    pairs = [(first[-(c.limit + 1 - len(choice)):], choice) for choice in choices]
    nats = [c.nats(*pair) for pair in pairs]
    c.equal("context", got["context"], len(first))
    c.equal("tokens", got["tokens"], list(map(len, choices)))
    c.equal("answer", got["answer"], example["answer"])
    for i, (want, loss) in enumerate(zip(nats, got["nats"], strict=True)):
        c.close(f"nats of choice {i}", loss, want)
    if len(choices) == 1:
        (context, choice), = pairs
        written = c.greedy(context, min(max(WITHIN, len(choice)), c.limit + 1 - len(context)))
        text = c.text_of(written[:WITHIN]).decode("utf-8", "each_byte")
        c.equal("written", got["written"], text)
        c.equal("accuracy", got["accuracy"], written[:len(choice)] == choice)
        c.equal("accuracy_within_10", got["accuracy_within_10"],
                example["choices"][0].lstrip().lower() in text.lower())
        return
    chars = [len(choice.removeprefix(" ")) for choice in example["choices"]]
    for rule, size in (("acc", [1] * len(nats)), ("acc_norm", chars), ("acc_token", list(map(len, choices)))):
        scores = [loss / by for loss, by in zip(nats, size, strict=True)]
        c.equal(rule, got[rule], scores.index(min(scores)) == example["answer"])


def solvable(c, examples, limit):
    """Examples that the model solves: the last word is the one that it generates, unchanged or in capitals."""
    made = []
    for example in examples:
        context = example["context"]
        word = c.text_of(c.greedy(c.ids(context)[-(c.limit - WITHIN):], 1))
        if word[:1] == b" " and word[1:].isalpha() and len(made) < limit:
            made += [example | {"choices": [w]} for w in (word.decode(), word.decode().upper())]
    return made


def make_cbt(lambada, n):
    """Examples in CBT's format: twenty lines of text, then a question with one word removed."""
    words = " ".join(json.loads(line)["text"] for line in lambada[: 4 * n]).split()
    for i in range(n):
        part = words[i * 150:(i + 1) * 150]
        lines = [f"{k + 1} " + " ".join(part[7 * k: 7 * k + 7]) for k in range(20)]
        candidates = sorted({w for w in part if w.isalpha()})[:10]
        query = " ".join(part[140:145] + ["XXXXX"] + part[146:])
        yield lines + [f"21 {query}\t{candidates[i % 10]}\t\t{'|'.join(candidates)}"]


def run_eval(args, folder, *options):
    out = folder / "eval.json"
    out.unlink(missing_ok=True)
    command = [args.binary, "eval", "--model", args.model, "--json", out, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return json.loads(out.read_text(encoding="utf-8"))


def check_task(c, args, folder, task, examples):
    path = folder / f"{task}.jsonl"
    path.write_text("".join(json.dumps(example) + "\n" for example in examples), encoding="utf-8")
    result = run_eval(args, folder, "--task", path, "--tokenizer", args.vocab, "--seq", c.limit)
    got = result["example"]
    c.equal(f"{task}: examples", result["examples"], len(examples))
    for example, one in zip(examples, got, strict=True):
        before = c.wrong
        check_example(c, example, one)
        if c.wrong > before:
            print(f"  … in {task}, line {one['line']}")
    solved = sum(g["accuracy" if "accuracy" in g else "acc"] for g in got)
    c.equal(f"{task}: some examples are solved, some not", 0 < solved < len(got), True)
    nats, tokens = sum(g["nats"][g["answer"]] for g in got), sum(g["tokens"][g["answer"]] for g in got)
    c.close(f"{task}: loss", result["loss"], nats / tokens)
    c.close(f"{task}: perplexity per token", result["perplexity_token"], math.exp(nats / tokens))
    if "perplexity_word" in result:
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
        def made(example, sources):
            return [dict(zip(("context", "choices", "answer"), example(source))) for source in sources]
        words, published = (made(f, lambada[: args.examples]) for f in (evalset.lambada, evalset.lambada_published))
        hellaswag = args.hellaswag.read_text(encoding="utf-8").split("\n")[: args.examples]
        for task, examples in (("lambada", words + solvable(c, words, 8)),
                               ("lambada_published", published + solvable(c, published, 8)),
                               ("hellaswag", made(evalset.hellaswag, hellaswag)),
                               ("cbt", made(evalset.cbt, make_cbt(lambada, args.examples // 4 + 1)))):
            before = c.compared, c.wrong
            check_task(c, args, folder, task, examples)
            print(f"{task}: {c.compared - before[0]} comparisons, {c.wrong - before[1]} wrong")
        before = c.compared, c.wrong
        check_data(c, args, folder, json.loads(lambada[0])["text"] + json.loads(lambada[1])["text"])
        print(f"data: {c.compared - before[0]} comparisons, {c.wrong - before[1]} wrong")
    print(f"{c.compared} comparisons, {c.wrong} wrong; largest relative error of a log-likelihood {c.worst:.1e}")
    return c.wrong != 0


if __name__ == "__main__":
    sys.exit(main())
