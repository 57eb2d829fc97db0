#!/usr/bin/env python3
"""OpenWebText as token shards in data/openwebtext, with the train/val split of the published runs.

    dev/data/openwebtext.py                  downloads 24 GB of Parquet; the datasets cache takes another 40 GB
    dev/data/openwebtext.py --from FOLDER    reads local Parquet files

Concatenated, the shards contain the same tokens as nanoGPT's train.bin and val.bin. If interrupted, run the same
command again to resume. Needs Python 3.11 or later, datasets and tqdm.
"""
from corpus import Corpus, main, random_split

if __name__ == "__main__":
    main(Corpus(
        name="openwebtext",
        split=random_split(test_size=0.0005, seed=2357),
        hub="Skylion007/openwebtext",
        revision="refs/convert/parquet",
        files=("plain_text/train/*.parquet",),
        documents=8_013_769,
        tokens={"train": 9_035_582_198, "val": 4_434_897},
    ))
