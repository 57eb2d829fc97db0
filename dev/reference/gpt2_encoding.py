"""The tokenizer of a vocab.bpe or tokenizer.json, in tiktoken."""

try:
    from .vocabulary import BYTE_OF, EOT, Vocabulary
except ImportError:  # as a script's neighbour, not as part of a package
    from vocabulary import BYTE_OF, EOT, Vocabulary

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def gpt2_encoding(path):
    """The tiktoken Encoding. With a vocab.bpe, ids are the 256 bytes in GPT-2's order (printable ones first), the
    merges, <|endoftext|>."""
    import tiktoken

    vocabulary = Vocabulary.read(path)
    ranks = {bytes(BYTE_OF[char] for char in piece): i for piece, i in vocabulary.ids.items()}
    return tiktoken.Encoding("vocab", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=vocabulary.added)
