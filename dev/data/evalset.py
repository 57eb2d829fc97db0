#!/usr/bin/env python3
"""Writes an evaluation set to data/eval, in the format of `train_gpt_tost eval --task FILE`: one JSON object per line,
{"context": text, "choices": [texts], "answer": index of the correct choice}.

    dev/data/evalset.py lambada [--from PATH]
        lambada.jsonl            the last word of each text of GPT-2's LAMBADA test set, as in lm-evaluation-harness
        lambada_published.jsonl  the same with the prompts of ToST's eval_lambada.py, for accuracy_within_10
    dev/data/evalset.py hellaswag [--from PATH]
        hellaswag.jsonl          HellaSwag's validation set (Zellers et al., 2019), as in lm-evaluation-harness
    dev/data/evalset.py cbt [--validation] [--from PATH]
        cbt_CN.jsonl, cbt_NE.jsonl  Children's Book Test (Hill et al., 2016), common nouns and named entities, as in
                                 ToST's eval_cbt.py; --validation: cbt_CN_valid.jsonl, cbt_NE_valid.jsonl, which the
                                 paper uses. PATH: CBTest.tgz, its files, or a folder with them

Downloads are in data/source. All examples are checked before a file is written. Needs Python 3.11 or later.
"""
import json
import os
import re
import tarfile
import zlib
from pathlib import Path

import fetch
from fetch import DATA, OneLineParser, Refused, json_object, shown

ARCHIVES = (".tgz", ".tar.gz", ".tar")
GAP = "XXXXX"     # the missing word in a question of CBT
CBT_LINES = 21    # of an example: 20 lines of context, then the question
GPT2 = "https://openaipublic.blob.core.windows.net/gpt-2/data/"


# ----------------------------------------------------------------------------------------------------------
# Examples. Each function returns (context, choices, answer), or raises ValueError.

def last_word(text):
    context, _, word = text.rpartition(" ")
    if not context.strip():
        raise ValueError('"text" has fewer than two words')
    return context, [" " + word], 0


def text_of(line):
    text = json_object(line).get("text")
    if not isinstance(text, str) or len(text.split()) < 2:
        raise ValueError('"text" is missing or has fewer than two words')
    return text


def lambada(line):
    return last_word(text_of(line).rstrip())


def lambada_published(line):
    return last_word("\n" + text_of(line).replace("“", '"').replace("”", '"').strip())


def prepare(text):
    """WikiHow's "[title]" ends a sentence; other marks in brackets are removed."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def hellaswag(line):
    """Of the original file, or of one whose "ctx" and "endings" are already prepared."""
    example = json_object(line)
    context, endings, label = example.get("ctx"), example.get("endings"), example.get("label")
    original = ("activity_label", "ctx_a", "ctx_b")
    if not isinstance(endings, list) or len(endings) != 4 or not all(isinstance(e, str) and e for e in endings):
        raise ValueError('"endings" is not a list of 4 texts')
    if label == "":
        raise ValueError('"label" is empty, as in the test set, whose answers are not public: use the validation set')
    if str(label) not in ("0", "1", "2", "3"):
        raise ValueError(f'"label" is {json.dumps(label)[:40]}, not an integer from 0 to 3')
    if example.keys() >= set(original):
        if not all(isinstance(example[key], str) for key in original):
            raise ValueError(f"one of {', '.join(original)} is not a text")
        context = prepare(f"{example['activity_label']}: {example['ctx_a']} {example['ctx_b'].capitalize()}")
        endings = [prepare(ending) for ending in endings]
    if not isinstance(context, str):
        raise ValueError('"ctx" is missing or not a text')
    return context, [" " + ending for ending in endings], int(label)


def cbt(lines):
    """lines: "1 …" to "20 …", then "21 question<tab>answer<tab><tab>candidate|…". The log-likelihood of the whole text
    after <|endoftext|> differs from that of the choice by a constant. The context ends at a space, where splitting a
    text does not change its tokens."""
    fields = lines[-1].split(" ", 1)[1].split("\t")
    if len(fields) != 4 or GAP not in fields[0]:
        raise ValueError(f"not a question with {GAP}, an answer, an empty field and candidates, separated by tabs")
    question, answer, _, candidates = fields
    candidates = candidates.split("|")
    if answer not in candidates:
        raise ValueError(f"the answer {answer} is not one of the candidates")
    text = " ".join([line.split(" ", 1)[1] for line in lines[:-1]] + [question])
    cut = text.rindex(" ", 0, text.index(GAP))
    choices = [text[cut:].replace(GAP, word) for word in candidates]
    return "<|endoftext|>\n" + text[:cut], choices, candidates.index(answer)


# ----------------------------------------------------------------------------------------------------------
# Files: (line number, text) of each example

def read_jsonl(path):
    yield from ((number, line) for number, line in fetch.text_lines(path) if line.strip())


def read_cbt(path):
    """Examples are lists of lines. In the file an empty line follows each example."""
    example = []
    for at, line in fetch.text_lines(path, errors="replace"):
        line = line.rstrip("\r\n")
        if not line and not example:
            continue
        example.append(line)
        if not line.startswith(f"{len(example)} "):
            raise Refused(f"{shown(path)}: line {at}: does not start with {len(example)}: expected line "
                          f"{len(example)} of the {CBT_LINES} lines of an example")
        if len(example) == CBT_LINES:
            yield at, example
            example = []
    if example:
        raise Refused(f"{shown(path)}: truncated: the last example has {len(example)} of {CBT_LINES} lines")


def cbt_set(part, count):
    files = {f"cbtest_{kind}_{part}_{count}ex.txt": (None, {f"cbt_{kind}{'_valid' * (part == 'valid')}.jsonl": cbt})
             for kind in ("CN", "NE")}
    return read_cbt, count, files, (("http://www.thespermwhale.com/jaseweston/babi/CBTest.tgz", "CBTest.tgz", None),)


LAMBADA_SHA256 = "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"
HELLASWAG_SHA256 = "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588"
# (reader, published number of examples, {file: (SHA-256, {written file: example})}, downloads)
SETS = {
    "lambada": (read_jsonl, 5153, {"lambada_test.jsonl": (LAMBADA_SHA256, {
        "lambada.jsonl": lambada, "lambada_published.jsonl": lambada_published})},
        ((GPT2 + "lambada_test.jsonl", "lambada_test.jsonl", LAMBADA_SHA256),)),
    "hellaswag": (read_jsonl, 10042, {"hellaswag_val.jsonl": (HELLASWAG_SHA256, {"hellaswag.jsonl": hellaswag})},
                  (("https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl",
                    "hellaswag_val.jsonl", HELLASWAG_SHA256),)),
    "cbt": cbt_set("test", 2500),
}


def convert(path, read, example):
    """The lines of the written file."""
    for number, source in read(path):
        try:
            row = json.dumps(dict(zip(("context", "choices", "answer"), example(source))), ensure_ascii=False)
            row.encode()
        except UnicodeEncodeError as error:
            raise Refused(f"{shown(path)}: line {number}: has half of a surrogate pair: not Unicode text") from error
        except ValueError as error:
            raise Refused(f"{shown(path)}: line {number}: {error}") from error
        yield row + "\n"


# ----------------------------------------------------------------------------------------------------------

def locate(names, sources, folder):
    """Finds the named files in files, folders and archives; archives are unpacked into `folder`. {name: path}"""
    candidates = []
    for source in sources:
        if not source.exists():
            raise Refused(f"{source}: not found")
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            candidates.append(path)
            if path.name.endswith(ARCHIVES):
                try:
                    with tarfile.open(path) as tar:
                        wanted = [member for member in tar if os.path.basename(member.name) in names]
                        tar.extractall(folder, wanted, filter="data")
                except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
                    raise Refused(f"{shown(path)}: cannot be unpacked: {str(error).splitlines()[0]}") from error
                candidates += [folder / member.name for member in wanted]
    found = {path.name: path for path in candidates if path.name in names}
    if not found and len(names) == len(sources) == 1 and sources[0].is_file():
        return {next(iter(names)): sources[0]}  # a single file may have any name
    missing = [name for name in names if name not in found]
    if missing:
        raise Refused(f"{' '.join(map(str, sources))}: does not contain {' or '.join(missing)}")
    return found


def build(args):
    if args.validation and args.name != "cbt":
        raise Refused("--validation is for cbt")
    read, count, files, urls = cbt_set("valid", 2000) if args.validation else SETS[args.name]
    folder = DATA / "source" / args.name
    if not args.source:
        fetch.download_all(urls, folder)
    found = locate(files, args.source or [folder], folder)
    made = {}
    for name, (digest, written) in files.items():
        for out, example in written.items():
            made[out] = list(convert(found[name], read, example))
            if len(made[out]) != count:
                raise Refused(f"{shown(found[name])}: {len(made[out]):,} examples, not the {count:,} published: "
                              "truncated, or a different split")
        if digest and fetch.sha256(found[name]) == digest:
            print(f"{shown(found[name])}: SHA-256 as published")
    args.out.mkdir(parents=True, exist_ok=True)
    for out, lines in made.items():
        fetch.write(args.out / out, "".join(lines).encode())
        print(f"{shown(args.out / out)}: {len(lines):,} examples")


def main():
    parser = OneLineParser()
    parser.add_argument("name", choices=SETS, metavar="|".join(SETS))
    parser.add_argument("--from", dest="source", type=Path, nargs="+", metavar="PATH",
                        help="local files, folders or archives to use instead of downloading")
    parser.add_argument("--validation", action="store_true", help="cbt: the validation sets instead of the test sets")
    parser.add_argument("--out", type=Path, default=DATA / "eval", metavar="FOLDER", help="default: data/eval")
    build(parser.parse_args())


if __name__ == "__main__":
    fetch.run(main)
