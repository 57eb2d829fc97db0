#!/usr/bin/env python3
"""HellaSwag's validation set (Zellers et al., 2019) as data/eval/hellaswag_val.jsonl.

    dev/data/hellaswag.py [--from PATH]
    ./train_gpt_tost eval --task hellaswag data/eval/hellaswag_val.jsonl
"""
from evalset import EvalSet, main, read_jsonl

NAME = "hellaswag_val.jsonl"
URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
SHA256 = "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588"


def wrong(example):
    endings = example.get("endings")
    if not isinstance(example.get("ctx"), str):
        return '"ctx" is missing or not a string'
    if not isinstance(endings, list) or len(endings) != 4 or not all(isinstance(e, str) for e in endings):
        return '"endings" is not a list of 4 strings'
    if example.get("label") not in range(4):
        return f'"label" is {example.get("label")!r}, not an integer from 0 to 3'
    return None


if __name__ == "__main__":
    main(EvalSet("hellaswag", files=((NAME, SHA256),), examples=10042, read=read_jsonl(wrong),
                 urls=((URL, NAME, SHA256),)))
