"""Tokenizers in tiktoken, from a vocab.bpe or tokenizer.json."""

try:
    from .tost import find_model
    from .vocabulary import BYTE_OF, Vocabulary, find_tokenizer
except ImportError:  # of a script in this folder, which is not a package then
    from tost import find_model
    from vocabulary import BYTE_OF, Vocabulary, find_tokenizer

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def gpt2_encoding(path):
    """The tiktoken Encoding. With a vocab.bpe, ids are the 256 bytes in GPT-2's order (printable ones first), the
    merges, <|endoftext|>."""
    import tiktoken

    vocabulary = Vocabulary.read(path)
    ranks = {bytes(BYTE_OF[char] for char in piece): i for piece, i in vocabulary.ids.items()}
    return tiktoken.Encoding("vocab", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=vocabulary.added)


def load_tokenizer(model, tokenizer=None):
    """The Encoding of the vocab.bpe beside a model (file, checkpoint folder or run), or of the file `tokenizer`."""
    from safetensors import safe_open

    path = find_model(model)
    with safe_open(path, framework="pt") as file:
        return gpt2_encoding(find_tokenizer(file.metadata() or {}, path, tokenizer)[0])
