#!/usr/bin/env python3
"""Learns a vocab.bpe from texts: byte-level BPE with GPT-2's pre-tokenization.

    dev/data/learn_vocab.py --size 4096 books.txt web.jsonl --out data/own/vocab.bpe
    dev/data/learn_vocab.py --size 257 --out data/bytes/vocab.bpe       one token per byte; no texts are needed

Texts are plain text, with a line <|endoftext|> between documents, or JSONL with a "text" field. A vocabulary of N
tokens has the 256 bytes, N - 257 merges and <|endoftext|>. vocab.bpe has GPT-2's format: a line "#version: 0.2", then one line
"left right" per merge, in GPT-2's printable alphabet for bytes. Needs the `tokenizers` library; the result is
deterministic for a given version of it.
"""
import json
import os
import re
from collections import Counter
from pathlib import Path

import fetch
from corpus import jsonl_documents, text_documents
from fetch import OneLineParser, Refused, shown

BYTES, SPECIAL = 256, 1
VERSION = "#version: 0.2"


def byte_letters():
    """GPT-2's alphabet in id order: 188 bytes are their own character, the others become chr(256), chr(257), …"""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = len(printable)
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - others)]


def documents(paths):
    for path in paths:
        yield from (jsonl_documents if path.suffix == ".jsonl" else text_documents)(path)


def byte_level(model):
    from tokenizers import Tokenizer, pre_tokenizers

    bpe = Tokenizer(model)
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return bpe


def learn(paths, merges):
    """The merges as pairs of strings in GPT-2's alphabet, in the order learned; fewer if the texts give no more. A
    merge whose piece exists already is left out, since a piece has one id."""
    from tokenizers import models, trainers

    repeated = 0
    while True:
        bpe = byte_level(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=BYTES + merges + repeated, initial_alphabet=byte_letters(),
                                      show_progress=False)
        bpe.train_from_iterator(documents(paths), trainer)
        learned = json.loads(bpe.to_str())["model"]["merges"]
        pairs = {}
        for pair in learned:
            left, right = pair.split(" ") if isinstance(pair, str) else pair
            pairs.setdefault(left + right, (left, right))
        if len(pairs) >= merges or len(learned) - len(pairs) == repeated:
            return list(pairs.values())[:merges]
        repeated = len(learned) - len(pairs)


def report(merges, paths):
    """Prints the fraction of words that are a single token: of all words, and of the distinct ones."""
    from tokenizers import models

    pieces = byte_letters() + [left + right for left, right in merges]
    bpe = byte_level(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    words, tokens = Counter(), 0
    for text in documents(paths):
        words.update(re.findall(r" ?[A-Za-z]+", text))
        tokens += len(bpe.encode(text).ids)
    whole = {word for word in words if len(bpe.encode(word).ids) == 1}
    total = sum(words.values())
    if total:
        print(f"words            {total:9,}   single-token {sum(words[w] for w in whole) / total:.4f}")
        print(f"distinct words   {len(words):9,}   single-token {len(whole) / len(words):.4f}")
    print(f"tokens           {tokens:9,}" + (f"   per word {tokens / total:.4f}" if total else ""))


def parse():
    parser = OneLineParser()
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="plain text or .jsonl")
    parser.add_argument("--size", type=int, required=True, metavar="N", help="number of tokens, at least 257")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="vocab.bpe to write")
    args = parser.parse_args()
    if args.size < BYTES + SPECIAL:
        parser.error(f"--size {args.size}: give at least {BYTES + SPECIAL}: 256 bytes and <|endoftext|>")
    if not args.files and args.size > BYTES + SPECIAL:
        parser.error(f"--size {args.size} needs a FILE to learn {args.size - BYTES - SPECIAL} merges from")
    return args


def check_output(path):
    """Only a vocab.bpe is replaced, so that the texts are not."""
    if path.is_dir():
        raise Refused(f"--out {path}: is a folder: give the name of a file in it, such as {path / 'vocab.bpe'}")
    if path.is_file() and not path.read_bytes().startswith(VERSION.encode()):
        raise Refused(f"--out {path}: exists and is no vocab.bpe: remove it, or give another name")


def main():
    args = parse()
    check_output(args.out)
    for path in args.files:
        if not path.is_file():
            raise Refused(f"{path}: not a file: give texts or JSONL")
    wanted = args.size - BYTES - SPECIAL
    merges = learn(args.files, wanted) if wanted else []
    if len(merges) < wanted:
        raise Refused(f"--size {args.size}: the texts give only {len(merges)} merges: use --size "
                      f"{BYTES + SPECIAL + len(merges)} or more text")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = args.out.with_name(args.out.name + ".tmp")
    with open(temporary, "w", encoding="utf-8", newline="\n") as out:
        out.write(f"{VERSION}\n")
        out.writelines(f"{left} {right}\n" for left, right in merges)
    os.replace(temporary, args.out)
    print(f"{shown(args.out)}: {len(merges)} merges, {args.size} tokens")
    if merges:
        report(merges, args.files)


if __name__ == "__main__":
    fetch.run(main)
