#!/usr/bin/env python3
"""WikiText-2 (raw) as token shards in data/wikitext2: train by articles, val and test one document each.

    dev/data/wikitext2.py [--from PATH…]     PATH: wiki.train.raw, … or Parquet files, or their folder

Needs Python 3.10, datasets and tqdm.
"""
import wikitext
from corpus import Corpus, by_name, main

if __name__ == "__main__":
    main(Corpus(
        name="wikitext2",
        divide=by_name(wikitext.cut),
        hub="Salesforce/wikitext",
        files=("wikitext-2-raw-v1/*.parquet",),
    ))
