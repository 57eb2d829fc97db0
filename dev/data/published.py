#!/usr/bin/env python3
"""Writes the test sets of the paper's table of losses as token shards to data/published. Every line is encoded alone
and followed by <|endoftext|>.

    dev/data/published.py wikitext2 [--from PATH]     PATH: wiki.test.raw or the Hub's Parquet file
    dev/data/published.py ptb [--from PATH]           PATH: ptb.test.txt
    dev/data/published.py lambada [--from PATH]       PATH: the original test set (lower case, tokenized), one text a
                                                      line, or the Hub's Parquet file
    ./train_gpt_tost eval --data data/published/wikitext2_test_000000.bin --windows 16000 --seq 1024

A line of WikiText keeps its line break, and its blank lines are empty; lines of PTB and LAMBADA have no line break.
Other uses of these sets score the whole text (corpus.py wikitext2, ptb) or the last word of GPT-2's LAMBADA
(evalset.py lambada): the losses are not comparable. Needs Python 3.11 or later, numpy and datasets.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import fetch
from cli import command, option_parser, run, write_file
from corpus import PTB_URL, Corpus, add_trainer_options, check_trainer, fetch_corpus, find_files, load, tokenize_command
from fetch import DATA, shown

HEADER_BYTES = 1024   # of a shard: 256 int32, of which the third is the number of tokens
CORPORA = {
    "wikitext2": Corpus("wikitext2-test", None, hub="Salesforce/wikitext", files=("wikitext-2-raw-v1/test-*.parquet",),
                        documents=4358),
    "ptb": Corpus("ptb-test", None, urls=((PTB_URL + "ptb.test.txt", "ptb.test.txt", None),), documents=3761),
    "lambada": Corpus("lambada-test", None, hub="cimec/lambada", files=("plain_text/test-*.parquet",), documents=5153),
}


def read_lines(name, files):
    """The rows of the published data set. On the Hub a row is a line; a blank line of WikiText is an empty row."""
    if len(files) != 1:
        raise ValueError(f"{len(files)} files, such as {shown(files[0].path)}: give the test file alone")
    if files[0].kind != "text":
        return load(files)["text"]
    text = "".join(line for _, line in fetch.text_lines(files[0].path))
    if name == "wikitext2":
        return [line + "\n" if line.strip() else "" for line in text.removesuffix("\n").split("\n")]
    return text.removesuffix("\n").split("\n")


def tokenize(lines, args, folder):
    """The shard of the lines that are not empty, each followed by <|endoftext|>: its header and ids."""
    import numpy

    jsonl = "".join(json.dumps({"text": line}) + "\n" for line in lines if line)
    done = subprocess.run(tokenize_command(args, folder / "lines"), input=jsonl.encode(), capture_output=True)
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace").strip() or f"tokenize: status {done.returncode}")
    shard = (folder / "lines_train_000000.bin").read_bytes()
    header = numpy.frombuffer(shard[:HEADER_BYTES], "<i4").copy()
    return header, numpy.frombuffer(shard[HEADER_BYTES:], f"<u{(len(shard) - HEADER_BYTES) // header[2]}")


def with_empty_lines(lines, ids):
    """Inserts the <|endoftext|> of empty lines, which tokenize skips."""
    import numpy

    documents = iter(numpy.split(ids, numpy.flatnonzero(ids == ids[-1]) + 1))
    return numpy.concatenate([next(documents) if line else ids[-1:] for line in lines])


def build(args):
    check_trainer(args)
    lines = read_lines(args.name, find_files([args.source] if args.source else [fetch_corpus(CORPORA[args.name])]))
    if not any(lines):
        raise ValueError(f"{args.source or args.name}: no text")
    if args.name == "wikitext2" and any("<unk>" in line for line in lines):
        raise ValueError(f"{args.source or args.name}: has <unk>, as wiki.test.tokens has: give "
                         "wiki.test.raw")
    if args.name == "lambada" and any(line != line.lower() for line in lines):
        raise ValueError(f"{args.source or args.name}: has capital letters: the original test set is in lower case; "
                         "this may be OpenAI's version, for evalset.py lambada")
    with tempfile.TemporaryDirectory() as folder:
        header, ids = tokenize(lines, args, Path(folder))
    ids = with_empty_lines(lines, ids)
    header[2] = len(ids)
    path = args.out / f"{args.name}_test_000000.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda part: part.write_bytes(header.tobytes() + ids.tobytes()))
    published = CORPORA[args.name].documents
    agrees = "as published" if len(lines) == published else f"but {published:,} published: not the published set"
    print(f"{shown(path)}: {len(ids):,} tokens, {len(lines):,} lines, {agrees}")


@command(ModuleNotFoundError)
def main(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("name", choices=CORPORA, metavar="|".join(CORPORA))
    parser.add_argument("--from", dest="source", type=Path, metavar="PATH",
                        help="local text or Parquet file to use instead of downloading")
    parser.add_argument("--out", type=Path, default=DATA / "published", metavar="FOLDER",
                        help="default: data/published")
    add_trainer_options(parser)
    build(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(run(main))
