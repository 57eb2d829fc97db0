#!/usr/bin/env python3
"""FineWeb's sample of 10 billion tokens as token shards in data/fineweb, divided as OpenWebText is.

    dev/data/fineweb.py                      downloads 28 GB of Parquet; another 45 GB go to datasets' cache
    dev/data/fineweb.py --from FOLDER        the same of files on this disk: any sample's Parquet

Stopped, the same command goes on. Needs Python 3.10, datasets and tqdm.
"""
from corpus import Corpus, at_random, main

if __name__ == "__main__":
    main(Corpus(
        name="fineweb",
        divide=at_random(test_size=0.0005, seed=2357),
        hub="HuggingFaceFW/fineweb",
        files=("sample/10BT/*.parquet",),
    ))
