#!/usr/bin/env python3
"""LAMBADA's test set, in the version published with GPT-2, as data/eval/lambada_test.jsonl.

    dev/data/lambada.py [--from PATH]
    ./train_gpt_tost eval --task lambada data/eval/lambada_test.jsonl
"""
from evalset import EvalSet, main, read_jsonl

NAME = "lambada_test.jsonl"
URL = "https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl"
SHA256 = "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"


def wrong(example):
    text = example.get("text")
    if not isinstance(text, str) or len(text.split()) < 2:
        return '"text" is missing or has fewer than two words'
    return None


if __name__ == "__main__":
    main(EvalSet("lambada", files=((NAME, SHA256),), examples=5153, read=read_jsonl(wrong),
                 urls=((URL, NAME, SHA256),)))
