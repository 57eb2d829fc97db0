#!/usr/bin/env python3
"""Downloads GPT-2's vocab.bpe (50,000 merges) to data/vocab.bpe and checks its SHA-256, or converts a tokenizer.json.

    dev/data/vocab.py [--from FILE] [--out FILE]

A tokenizer.json of Hugging Face tokenizers can be converted if it is byte-level BPE with GPT-2's pattern. The ids of a
vocab.bpe are in its order: bytes, merges, <|endoftext|>. Needs Python 3.11 or later.
"""
import sys
from pathlib import Path

from fetch import DATA, check_sha256, download, shown

from cli import command, option_parser, run, write_file
from vocabulary import EOT, Vocabulary

URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
VOCAB = DATA / "vocab.bpe"


def convert(source, out):
    vocabulary = Vocabulary.read(source)
    write_file(out, lambda part: part.write_bytes(vocabulary.vocab_bpe()))
    note = "" if vocabulary.standard else f"; its ids (bytes, merges, {EOT}) are not those of {source}"
    print(f"{shown(out)}: {len(vocabulary.merges):,} merges{note}")


@command()
def main(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="copy or convert a local file instead")
    parser.add_argument("--out", type=Path, default=VOCAB, metavar="FILE", help="default: data/vocab.bpe")
    args = parser.parse_args(arguments)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.source and args.source.read_bytes().lstrip().startswith(b"{"):
        return convert(args.source, args.out)
    if args.source:
        check_sha256(args.source, SHA256, shown(args.source))
        write_file(args.out, lambda part: part.write_bytes(args.source.read_bytes()))
    elif args.out.exists():
        check_sha256(args.out, SHA256, shown(args.out))
    else:
        download(URL, args.out, SHA256)
    print(f"{shown(args.out)}: GPT-2's vocabulary, SHA-256 as published")


if __name__ == "__main__":
    sys.exit(run(main))
