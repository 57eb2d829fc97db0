#!/usr/bin/env python3
"""Tiny Shakespeare as token shards in data/shakespeare: the first nine tenths train, the rest is val.

    dev/data/shakespeare.py [--from FILE]

nanoGPT publishes 301,966 and 36,059 tokens; here <|endoftext|> ends either part and is counted.
Needs Python 3.10, datasets and tqdm.
"""
from corpus import Corpus, load, main

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def by_characters(files):
    import datasets

    text = "".join(load(files)["text"])
    cut = int(len(text) * 0.9)
    return {part: datasets.Dataset.from_dict({"text": [of_part]})
            for part, of_part in (("train", text[:cut]), ("val", text[cut:]))}


if __name__ == "__main__":
    main(Corpus(
        name="shakespeare",
        divide=by_characters,
        urls=((URL, "shakespeare.txt", SHA256),),
        documents=2,
        tokens={"train": 301_966 + 1, "val": 36_059 + 1},
    ))
