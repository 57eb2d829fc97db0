#!/usr/bin/env python3
"""Tiny Shakespeare as token shards in data/shakespeare: the first 90 % is train, the rest val.

    dev/data/shakespeare.py [--from FILE]

nanoGPT reports 301,966 and 36,059 tokens; here each split has one more, the final <|endoftext|>.
Needs Python 3.11 or later, datasets and tqdm.
"""
from corpus import Corpus, load, main

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def split_characters(files):
    import datasets

    text = "".join(load(files)["text"])
    cut = int(len(text) * 0.9)
    return {split: datasets.Dataset.from_dict({"text": [part]})
            for split, part in (("train", text[:cut]), ("val", text[cut:]))}


if __name__ == "__main__":
    main(Corpus(
        name="shakespeare",
        split=split_characters,
        urls=((URL, "shakespeare.txt", SHA256),),
        documents=2,
        tokens={"train": 301_966 + 1, "val": 36_059 + 1},
    ))
