#!/usr/bin/env python3
"""WikiText-103 (raw) as token shards in data/wikitext103: train by articles, val and test one document each.

    dev/data/wikitext103.py [--from PATH…]     PATH: wiki.train.raw, … or Parquet files, or their folder

Needs Python 3.10, datasets and tqdm.
"""
import wikitext
from corpus import Corpus, by_name, main

if __name__ == "__main__":
    main(Corpus(
        name="wikitext103",
        divide=by_name(wikitext.cut),
        hub="Salesforce/wikitext",
        files=("wikitext-103-raw-v1/*.parquet",),
    ))
