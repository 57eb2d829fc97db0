#!/usr/bin/env python3
"""Learns a vocab.bpe from texts: byte-level BPE with GPT-2's pre-tokenization.

    dev/data/learn_vocab.py --size 4096 books.txt web.jsonl --out data/own/vocab.bpe
    dev/data/learn_vocab.py --size 257 --out data/bytes/vocab.bpe       one token per byte; no texts are needed

Texts are plain text, with a line <|endoftext|> between documents, or JSONL or Parquet with a "text" field. A vocabulary
of N tokens has the 256 bytes, N - 257 merges and <|endoftext|>, in GPT-2's format. Needs the `tokenizers` library, and
`datasets` for Parquet; the result is deterministic for a given version of `tokenizers`.
"""
import json
from pathlib import Path

import fetch
from corpus import find_files, jsonl_documents, load, text_documents
from fetch import OneLineParser, Refused, shown
from vocabulary import ALPHABET, VERSION_LINE, Vocabulary

BYTES, SPECIAL = 256, 1


def documents(paths):
    for path in paths:
        if path.suffix == ".parquet":
            yield from (row["text"] or "" for row in load(find_files([path])))
        else:
            yield from (jsonl_documents if path.suffix == ".jsonl" else text_documents)(path)


def learn(paths, merges):
    """The merges as pairs of strings in GPT-2's alphabet, in the order learned; fewer if the texts give no more. A
    merge whose piece exists already is left out, since a piece has one id."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    repeated = 0
    while True:
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        trainer = trainers.BpeTrainer(vocab_size=BYTES + merges + repeated, initial_alphabet=ALPHABET,
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


def parse():
    parser = OneLineParser()
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="plain text, .jsonl or .parquet")
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
    if path.is_file() and not path.read_bytes().startswith(VERSION_LINE.encode()):
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
    fetch.write(args.out, Vocabulary(merges).vocab_bpe())
    print(f"{shown(args.out)}: {len(merges)} merges, {args.size} tokens")


if __name__ == "__main__":
    fetch.run(main)
