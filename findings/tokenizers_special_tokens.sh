#!/bin/sh
# One tokenizer.json gives two readings of <|endoftext|> in a text: split_special_tokens, in tokenizer_config.json, is
# read by transformers only, and tokenizer.json itself cannot say it.
#
# versions: transformers 5.23.0, tokenizers 0.23.3; Python 3.11
# behaviour: of the same folder, AutoTokenizer encodes the text "a<|endoftext|>" as its characters, and
#     tokenizers.Tokenizer.from_file as the special token, until encode_special_tokens is set, which to_str() forgets
# seen:
#     transformers: 14 ids
#     tokenizers: 2 ids, the last of them <|endoftext|>
#     tokenizers with encode_special_tokens: 14 ids; saved and read again: 2 ids
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q transformers==5.23.0 tokenizers==0.23.3
cd "$dir"
TRANSFORMERS_VERBOSITY=error "$dir/venv/bin/python" - <<'END'
import json
import sys

from tokenizers import ByteLevelBPETokenizer, Tokenizer
from transformers import AutoTokenizer

learner = ByteLevelBPETokenizer()
learner.train_from_iterator([], vocab_size=257, special_tokens=["<|endoftext|>"], show_progress=False)
learner.save("tokenizer.json")
with open("tokenizer_config.json", "w") as file:
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
               "split_special_tokens": True}, file)
text, counts = "a<|endoftext|>", []
counts.append(len(AutoTokenizer.from_pretrained(".")(text)["input_ids"]))
alone = Tokenizer.from_file("tokenizer.json")
counts.append(len(alone.encode(text).ids))
alone.encode_special_tokens = True
counts += [len(alone.encode(text).ids), len(Tokenizer.from_str(alone.to_str()).encode(text).ids)]
print(f"transformers: {counts[0]} ids\ntokenizers: {counts[1]} ids, the last of them <|endoftext|>\n"
      f"tokenizers with encode_special_tokens: {counts[2]} ids; saved and read again: {counts[3]} ids")
sys.exit(0 if counts == [14, 2, 14, 2] else "the behaviour changed")
END
