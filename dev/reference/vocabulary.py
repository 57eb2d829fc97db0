"""GPT-2's byte-level BPE as defined by a vocab.bpe (or merges.txt) or by a tokenizer.json of Hugging Face tokenizers.

Pieces are written in GPT-2's alphabet, which has a printable character for each byte. Needs no packages.
"""

import json
import re
import zlib
from pathlib import Path

EOT, PAD = "<|endoftext|>", "<|pad|>"
VERSION_LINE = "#version: 0.2"
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(OTHERS)}
ALPHABET = list(BYTE_OF)  # in GPT-2's order, which is that of the byte tokens


class Vocabulary:
    """merges: pairs of pieces in order. ids: {piece: id} of the 256 bytes and of every merge. added: {text: id} of
    tokens that no text is encoded to, at least <|endoftext|>."""

    def __init__(self, merges, ids=None, added=None):
        pieces = ALPHABET + [left + right for left, right in merges]
        if len(set(pieces)) != len(pieces):
            raise ValueError("two merges give the same token")
        self.merges = merges
        self.ids = ids or {piece: i for i, piece in enumerate(pieces)}
        self.added = added or {EOT: len(pieces)}
        self.standard = [*map(self.ids.get, pieces), self.added[EOT]] == list(range(len(pieces) + 1))
        self.size = len(self.ids) + len(self.added)
        self.eot = self.added[EOT]

    def vocab_bpe(self):
        """The content of the vocab.bpe with these merges."""
        return "".join(f"{line}\n" for line in [VERSION_LINE, *map(" ".join, self.merges)]).encode()

    def hash(self):
        """The trainer's checksum of the vocab.bpe with these merges."""
        return zlib.crc32(self.vocab_bpe())

    def tokenizer_json(self):
        """The content of the tokenizer.json of Hugging Face tokenizers that encodes texts in the same way."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                  "special": True} for text, i in sorted(self.added.items(), key=lambda item: item[1])]
        vocab = dict(sorted((self.ids | self.added).items(), key=lambda item: item[1]))
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                 "vocab": vocab, "merges": [list(pair) for pair in self.merges]}
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}

    @classmethod
    def read(cls, path):
        """Reads either format, recognized by content. Other tokenizers raise ValueError with what was found."""
        text = Path(path).read_text(encoding="utf-8-sig")
        try:
            if re.match(r'\s*\{\s*"[^\r\n]', text):
                return cls.from_json(json.loads(text))
            lines = text.split("\n")
            return cls([tuple(line.split(" ")) for line in lines if line.strip() and not line.startswith("#version")])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: {error}: not a vocab.bpe or a tokenizer.json of byte-level BPE") from error

    @classmethod
    def from_json(cls, content):
        model, split = content.get("model"), content.get("pre_tokenizer") or {}
        if not isinstance(model, dict):
            raise ValueError(f"model is {json.dumps(model)}, not an object")
        after = content.get("post_processor") or {}
        if after.get("type") == "TemplateProcessing" and not after.get("special_tokens"):
            after = {}   # adds nothing; transformers writes it
        found = [("model", model.get("type", "BPE"), "BPE"), ("normalizer", content.get("normalizer"), None),
                 ("pre_tokenizer", split.get("type"), "ByteLevel"),
                 ("add_prefix_space", split.get("add_prefix_space"), False),
                 ("use_regex", split.get("use_regex", True), True),
                 ("post_processor", after.get("type", "ByteLevel"), "ByteLevel"),
                 *((key, model.get(key) or None, None) for key in
                   ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"))]
        for what, value, wanted in found:
            if value != wanted:
                raise ValueError(f"{what} is {json.dumps(value)}, not {json.dumps(wanted)}")
        if "merges" not in model:
            raise ValueError("the model has no merges")
        merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
        if EOT not in added:
            raise ValueError(f"no added token {EOT}")
        ids = {piece: i for piece, i in model["vocab"].items() if piece not in added}
        pieces = ALPHABET + [left + right for left, right in merges]
        wrong = sorted(set(pieces) ^ ids.keys())
        if wrong:
            raise ValueError(f"token {json.dumps(wrong[0])} " + ("has no id" if wrong[0] in pieces else
                                                                 "is neither a byte nor the result of a merge"))
        return cls(merges, ids, added)


def find_tokenizer(metadata, model_file, given):
    """Path and Vocabulary of --tokenizer or of the vocab.bpe beside the model file."""
    found = given or model_file.parent / "vocab.bpe"
    if not given and not found.is_file():
        raise ValueError(f"{model_file} has no vocab.bpe beside it: give --tokenizer FILE, the one it was trained with")
    vocabulary = Vocabulary.read(found)
    wanted = metadata.get("tokenizer_hash")
    sums = {f"{zlib.crc32(Path(found).read_bytes()):08x}", f"{vocabulary.hash():08x}"}   # the latter: tokenizer.json
    if wanted and wanted not in sums:
        raise ValueError(f"{model_file} was trained with a tokenizer of CRC-32 {wanted}, but {found} has "
                         f"{' or '.join(sorted(sums))}: give the original file as --tokenizer")
    return found, vocabulary
