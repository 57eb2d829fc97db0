#!/usr/bin/env python3
"""OpenWebText, divided as the published runs divided it, as token shards in data/openwebtext.

    dev/data/openwebtext.py                  downloads 24 GB of Parquet; another 40 GB go to datasets' cache
    dev/data/openwebtext.py --from FOLDER    the same of files on this disk

The shards one after the other are nanoGPT's train.bin and val.bin. Stopped, the same command goes on.
Needs Python 3.10, datasets and tqdm.
"""
from corpus import Corpus, at_random, main

if __name__ == "__main__":
    main(Corpus(
        name="openwebtext",
        divide=at_random(test_size=0.0005, seed=2357),
        hub="Skylion007/openwebtext",
        revision="refs/convert/parquet",
        files=("plain_text/train/*.parquet",),
        documents=8_013_769,
        tokens={"train": 9_035_582_198, "val": 4_434_897},
    ))
