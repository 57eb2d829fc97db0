#!/usr/bin/env python3
"""Writes an evaluation set to data/eval, in the format of `train_gpt_tost eval --task FILE`: one JSON object per line,
{"context": text, "choices": [texts], "answer": index of the correct choice}.

    dev/data/evalset.py lambada [--from PATH]
        lambada.jsonl            the last word of each text of GPT-2's LAMBADA test set, as in lm-evaluation-harness
        lambada_published.jsonl  the same with the prompts of ToST's eval_lambada.py, for accuracy_within_10
    dev/data/evalset.py hellaswag [--from PATH]
        hellaswag.jsonl          HellaSwag's validation set (Zellers et al., 2019), as in lm-evaluation-harness
    dev/data/evalset.py cbt [--from PATH]
        cbt_CN.jsonl, cbt_NE.jsonl  Children's Book Test (Hill et al., 2016), common nouns and named entities, as in
                                 ToST's eval_cbt.py, of the test sets; the paper uses the validation sets.
                                 PATH: CBTest.tgz, or the folder that it contains
    dev/data/evalset.py blimp [--from PATH]
        blimp.jsonl              BLiMP (Warstadt et al., 2020), as in lm-evaluation-harness: acc is that of its group
                                 blimp. PATH: BLiMP.zip, one of its .jsonl files, or a folder of these or of BabyLM's

Downloads are in data/source. All examples are checked before a file is written. Needs Python 3.11 or later.
"""
import json
import re
import shutil
import sys
import zipfile
import zlib
from pathlib import Path

import fetch
from cli import command, option_parser, run, write_file
from fetch import DATA, json_object, shown

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
    try:
        context, endings, answer = example.get("ctx"), example["endings"], int(example["label"])
        if "activity_label" in example:
            context = prepare(f"{example['activity_label']}: {example['ctx_a']} {example['ctx_b'].capitalize()}")
            endings = [prepare(ending) for ending in endings]
        if not isinstance(context, str) or len(endings) != 4 or answer not in range(4):
            raise ValueError
        return context, [" " + ending for ending in endings], answer
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError('needs "ctx", 4 "endings" and a "label" from 0 to 3, as in the validation set') from error


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


def blimp(line):
    """The context is empty, and the harness puts a space before each sentence."""
    example = json_object(line)
    pair = [example.get(key) for key in ("sentence_good", "sentence_bad")]
    if not all(isinstance(sentence, str) and sentence.strip() for sentence in pair):
        raise ValueError('needs texts "sentence_good" and "sentence_bad"')
    return "", [" " + sentence for sentence in pair], 0


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
            raise ValueError(f"{shown(path)}: line {at}: does not start with {len(example)}: expected line "
                             f"{len(example)} of the {CBT_LINES} lines of an example")
        if len(example) == CBT_LINES:
            yield at, example
            example = []
    if example:
        raise ValueError(f"{shown(path)}: truncated: the last example has {len(example)} of {CBT_LINES} lines")


LAMBADA_SHA256 = "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"
HELLASWAG_SHA256 = "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588"
BLIMP_SHA256 = "172a1a714d72e72a89e8384dd531483f3d0f8a9aee3d33dccaf7992d8cecbb73"
# (reader, published number of examples or None, {pattern of file names: (SHA-256, {written file: example})}, downloads)
SETS = {
    "lambada": (read_jsonl, 5153, {"lambada_test.jsonl": (LAMBADA_SHA256, {
        "lambada.jsonl": lambada, "lambada_published.jsonl": lambada_published})},
        ((GPT2 + "lambada_test.jsonl", "lambada_test.jsonl", LAMBADA_SHA256),)),
    "hellaswag": (read_jsonl, 10042, {"hellaswag_val.jsonl": (HELLASWAG_SHA256, {"hellaswag.jsonl": hellaswag})},
                  (("https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl",
                    "hellaswag_val.jsonl", HELLASWAG_SHA256),)),
    "cbt": (read_cbt, 2500, {f"cbtest_{kind}_test_2500ex.txt": (None, {f"cbt_{kind}.jsonl": cbt})
                             for kind in ("CN", "NE")},
            (("http://www.thespermwhale.com/jaseweston/babi/CBTest.tgz", "CBTest.tgz", None),)),
    "blimp": (read_jsonl, None, {"[!.]*.jsonl": (None, {"blimp.jsonl": blimp})},
              (("https://raw.githubusercontent.com/alexwarstadt/blimp/master/BLiMP.zip", "BLiMP.zip", BLIMP_SHA256),)),
}


def convert(path, read, example):
    """The lines of the written file."""
    for number, source in read(path):
        try:
            row = json.dumps(dict(zip(("context", "choices", "answer"), example(source))), ensure_ascii=False)
            row.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{shown(path)}: line {number}: has half of a surrogate pair: not Unicode text") from error
        except ValueError as error:
            raise ValueError(f"{shown(path)}: line {number}: {error}") from error
        yield row + "\n"


# ----------------------------------------------------------------------------------------------------------

def locate(names, source, folder, download):
    """{name: paths} in a folder, in the download in that folder, or in an archive, which is unpacked into `folder`."""
    archive = source / download if source.is_dir() else source
    if archive.suffix in (".tgz", ".zip") and archive.exists():
        try:
            shutil.unpack_archive(archive, folder, **({"filter": "data"} if archive.suffix == ".tgz" else {}))
        except (shutil.ReadError, EOFError, OSError, zlib.error, zipfile.BadZipFile) as error:
            raise ValueError(f"{shown(archive)}: cannot be unpacked: {str(error).splitlines()[0]}") from error
        source = folder
    if source.is_file() and len(names) == 1:
        return {next(iter(names)): [source]}  # it may have any name
    found = {name: sorted(source.rglob(name)) for name in names}
    missing = [name for name in names if not found[name]]
    if missing:
        raise ValueError(f"{source}: does not contain {' or '.join(missing)}")
    return found


def build(args):
    read, count, files, urls = SETS[args.name]
    folder = DATA / "source" / args.name
    if not args.source:
        fetch.download_all(urls, folder)
    found = locate(files, args.source or folder, folder, urls[0][1])
    made = {}
    for name, (digest, written) in files.items():
        for out, example in written.items():
            made[out] = [row for path in found[name] for row in convert(path, read, example)]
            if count and len(made[out]) != count:
                raise ValueError(f"{shown(found[name][0])}: {len(made[out]):,} examples, not the {count:,} published: "
                                 "truncated, or a different split")
        if digest and fetch.sha256(found[name][0]) == digest:
            print(f"{shown(found[name][0])}: SHA-256 as published")
    args.out.mkdir(parents=True, exist_ok=True)
    for out, lines in made.items():
        write_file(args.out / out, lambda part: part.write_text("".join(lines), encoding="utf-8", newline=""))
        print(f"{shown(args.out / out)}: {len(lines):,} examples")


@command()
def main(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("name", choices=SETS, metavar="|".join(SETS))
    parser.add_argument("--from", dest="source", type=Path, metavar="PATH",
                        help="local file or folder to use instead of downloading")
    parser.add_argument("--out", type=Path, default=DATA / "eval", metavar="FOLDER", help="default: data/eval")
    build(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(run(main))
