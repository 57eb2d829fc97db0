#!/usr/bin/env python3
"""Learns the starter's vocab.bpe: byte-level BPE over GPT-2's pre-tokenisation, from texts of starter.py.

    starter_vocab.py --merges 2047 --out data/starter/vocab.bpe FILE...

vocab.bpe is GPT-2's format: a line "#version: 0.2", then "left right" a merge, in GPT-2's alphabet of
printable bytes. Ids: 256 bytes in that alphabet's order, one a merge, <|endoftext|> last; 2,047 merges
give 2,304 tokens, 36 times 64.
Needs the `tokenizers` library; the result is the same for the same texts and the same version of it.
"""
import argparse
import json
import re
from collections import Counter

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

EOT = "<|endoftext|>"


def byte_letters():
    """GPT-2's alphabet in the order of ids: 188 bytes stand for themselves, the others for 256, 257, ..."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = len(printable)
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - others)]


def documents(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for text in file.read().split(f"\n{EOT}\n"):
                if text:
                    yield text


def learn(texts, merges):
    """The merges as pairs of strings in GPT-2's alphabet, best first."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=byte_letters(),
                                  show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    pairs = json.loads(bpe.to_str())["model"]["merges"]
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in pairs]


def encoder(merges):
    """A tokenizer with the ids that vocab.bpe means."""
    pieces = byte_letters() + [left + right for left, right in merges]
    if len(set(pieces)) != len(pieces):
        raise SystemExit("starter_vocab.py: two merges make the same piece, so ids would not be unique")
    bpe = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return bpe


def report(bpe, texts):
    """Prints how far words are single tokens, among the words of the text and among the distinct ones."""
    words = Counter()
    tokens = 0
    for text in texts:
        words.update(re.findall(r" ?[A-Za-z]+", text))
        tokens += len(bpe.encode(text).ids)
    whole = {word for word in words if len(bpe.encode(word).ids) == 1}
    total = sum(words.values())
    print(f"words            {total:9,}   in one token {sum(words[w] for w in whole) / total:.4f}")
    print(f"distinct words   {len(words):9,}   in one token {len(whole) / len(words):.4f}")
    print(f"tokens           {tokens:9,}   a word {tokens / total:.4f}")


def main():
    parser = argparse.ArgumentParser(description="Learns the starter's vocab.bpe.")
    parser.add_argument("files", nargs="+",  help="texts, documents separated by a line <|endoftext|>")
    parser.add_argument("--merges", type=int, default=2047, help="merges to learn (default 2047)")
    parser.add_argument("--out", required=True, help="vocab.bpe to write")
    args = parser.parse_args()
    texts = list(documents(args.files))
    merges = learn(texts, args.merges)
    if len(merges) != args.merges:
        raise SystemExit(f"starter_vocab.py: the texts give {len(merges)} merges; ask for that many or fewer")
    with open(args.out, "w", encoding="utf-8") as out:
        out.write("#version: 0.2\n")
        out.writelines(f"{left} {right}\n" for left, right in merges)
    print(f"{args.out}: {len(merges)} merges, {256 + len(merges) + 1} tokens")
    report(encoder(merges), texts)


if __name__ == "__main__":
    main()
