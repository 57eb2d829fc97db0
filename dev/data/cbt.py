#!/usr/bin/env python3
"""Children's Book Test (Hill et al., 2016), common nouns and named entities, into data/eval.

    dev/data/cbt.py [--from PATH]            PATH: CBTest.tgz, its two files, or a folder with them
    dev/data/cbt.py --validation             the validation sets, which the paper uses
    ./train_gpt_tost eval --task cbt data/eval/cbtest_CN_test_2500ex.txt
"""
from evalset import EvalSet, main
from fetch import Refused, shown

URL = "http://www.thespermwhale.com/jaseweston/babi/CBTest.tgz"
TEST = ("cbtest_CN_test_2500ex.txt", "cbtest_NE_test_2500ex.txt")
VALIDATION = ("cbtest_CN_valid_2000ex.txt", "cbtest_NE_valid_2000ex.txt")
LINES = 21  # per example: 20 lines of context, then the question


def is_question(line):
    """True if the line is: text with a gap, answer, empty field, candidates; separated by tabs."""
    fields = line.split("\t")
    return len(fields) == 4 and "XXXXX" in fields[0] and fields[1] in fields[3].split("|")


def read(path):
    """Yields examples: lists of lines "1 …" to "21 …". In the file an empty line follows each example."""
    example = []
    with open(path, encoding="utf-8", errors="replace", newline="\n") as lines:
        for at, line in enumerate(lines, 1):
            line = line.rstrip("\r\n")
            if not line and not example:
                continue
            number = len(example) + 1
            if not line.startswith(f"{number} "):
                raise Refused(f"{shown(path)}: line {at}: does not start with {number}: expected line {number} of "
                              f"the {LINES} lines of an example")
            example.append(line)
            if number == LINES:
                if not is_question(line):
                    raise Refused(f"{shown(path)}: line {at}: not a question with its answer among the candidates")
                yield example
                example = []
    if example:
        raise Refused(f"{shown(path)}: truncated: the last example has {len(example)} of {LINES} lines")


def evalset(names, examples):
    return EvalSet("cbt", files=tuple((name, None) for name in names), examples=examples, read=read,
                   urls=((URL, "CBTest.tgz", None),))


if __name__ == "__main__":
    main(evalset(TEST, 2500), evalset(VALIDATION, 2000))
