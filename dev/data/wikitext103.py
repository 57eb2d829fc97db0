#!/usr/bin/env python3
"""WikiText-103 (raw) as token shards in data/wikitext103: train is one document per article, val and test one each.

    dev/data/wikitext103.py [--from PATH…]     PATH: wiki.train.raw, … or Parquet files, or their folder

Needs Python 3.11 or later, datasets and tqdm.
"""
import wikitext
from corpus import Corpus, main, split_by_name

if __name__ == "__main__":
    main(Corpus(
        name="wikitext103",
        split=split_by_name(wikitext.to_documents),
        hub="Salesforce/wikitext",
        files=("wikitext-103-raw-v1/*.parquet",),
    ))
