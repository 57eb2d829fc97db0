"""GPT-2's tokenizer in tiktoken, made from a vocab.bpe."""

from pathlib import Path

import tiktoken

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def gpt2_encoding(vocab_bpe):
    """The tiktoken Encoding. Ids: the 256 bytes in GPT-2's order (printable ones first), the merges, <|endoftext|>."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    ranks = {bytes([byte]): i for i, byte in enumerate(printable + others)}
    for line in Path(vocab_bpe).read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#version"):
            ranks[bytes(byte_of[char] for char in line.replace(" ", ""))] = len(ranks)
    return tiktoken.Encoding("vocab", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": len(ranks)})
