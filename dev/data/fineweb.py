#!/usr/bin/env python3
"""FineWeb's 10-billion-token sample as token shards in data/fineweb, split like OpenWebText.

    dev/data/fineweb.py                      downloads 28 GB of Parquet; the datasets cache takes another 45 GB
    dev/data/fineweb.py --from FOLDER        reads local Parquet files, of any FineWeb sample

If interrupted, run the same command again to resume. Needs Python 3.11 or later, datasets and tqdm.
"""
from corpus import Corpus, main, random_split

if __name__ == "__main__":
    main(Corpus(
        name="fineweb",
        split=random_split(test_size=0.0005, seed=2357),
        hub="HuggingFaceFW/fineweb",
        files=("sample/10BT/*.parquet",),
    ))
