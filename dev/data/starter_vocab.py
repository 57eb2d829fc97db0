#!/usr/bin/env python3
"""Learns the starter model's vocab.bpe from stories of starter.py: byte-level BPE with GPT-2's pre-tokenization.

    starter_vocab.py --merges 2047 --out data/starter/vocab.bpe FILE...

vocab.bpe has GPT-2's format: a line "#version: 0.2", then one line "left right" per merge, in GPT-2's
printable alphabet for bytes. Ids: the 256 bytes in that alphabet's order, the merges, <|endoftext|>; 2,047
merges give 2,304 tokens, a multiple of 64. Needs the `tokenizers` library; the result is deterministic for
a given version of it.
"""
import argparse
import json
import re
from collections import Counter

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

EOT = "<|endoftext|>"


def byte_letters():
    """GPT-2's alphabet in id order: 188 bytes are their own character, the others become chr(256), chr(257), …"""
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
    """The merges as pairs of strings in GPT-2's alphabet, in the order learned."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=byte_letters(),
                                  show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    pairs = json.loads(bpe.to_str())["model"]["merges"]
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in pairs]


def encoder(merges):
    """A tokenizer with the ids that vocab.bpe defines."""
    pieces = byte_letters() + [left + right for left, right in merges]
    if len(set(pieces)) != len(pieces):
        raise SystemExit("starter_vocab.py: two merges give the same piece: ids would not be unique")
    bpe = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return bpe


def report(bpe, texts):
    """Prints the fraction of words that are a single token: of all words, and of the distinct ones."""
    words = Counter()
    tokens = 0
    for text in texts:
        words.update(re.findall(r" ?[A-Za-z]+", text))
        tokens += len(bpe.encode(text).ids)
    whole = {word for word in words if len(bpe.encode(word).ids) == 1}
    total = sum(words.values())
    print(f"words            {total:9,}   single-token {sum(words[w] for w in whole) / total:.4f}")
    print(f"distinct words   {len(words):9,}   single-token {len(whole) / len(words):.4f}")
    print(f"tokens           {tokens:9,}   per word {tokens / total:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+",  help="text files; documents are separated by lines <|endoftext|>")
    parser.add_argument("--merges", type=int, default=2047, help="number of merges (default: 2047)")
    parser.add_argument("--out", required=True, help="file to write")
    args = parser.parse_args()
    texts = list(documents(args.files))
    merges = learn(texts, args.merges)
    if len(merges) != args.merges:
        raise SystemExit(f"starter_vocab.py: --merges {args.merges}: the texts give only {len(merges)}")
    with open(args.out, "w", encoding="utf-8") as out:
        out.write("#version: 0.2\n")
        out.writelines(f"{left} {right}\n" for left, right in merges)
    print(f"{args.out}: {len(merges)} merges, {256 + len(merges) + 1} tokens")
    report(encoder(merges), texts)


if __name__ == "__main__":
    main()
