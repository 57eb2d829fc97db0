#!/usr/bin/env python3
"""TinyStories (Eldan and Li, 2023) as token shards in data/tinystories.

    dev/data/tinystories.py [--from PATH…]   PATH: Parquet, or TinyStories-train.txt and TinyStories-valid.txt

Needs Python 3.11 or later, datasets and tqdm.
"""
from corpus import Corpus, main, split_by_name

if __name__ == "__main__":
    main(Corpus(
        name="tinystories",
        split=split_by_name(),
        hub="roneneldan/TinyStories",
        files=("data/train-*.parquet", "data/validation-*.parquet"),
    ))
