"""Text corpora to token shards: what openwebtext.py and its siblings share. Each of those is one row.

A corpus is fetched into data/source/NAME (or read with --from), divided into train, val and test documents
by the `datasets` library, and streamed as JSONL to `train_gpt_tost tokenize`, a fixed number of documents a
shard. A shard appears under its name when it is whole, so a run that was stopped goes on with the first
that is missing, and the shards are the same as without the stop. PREFIX.json says what they were made of.
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import fetch
import vocab
from fetch import DATA, OneLineParser, Refused, shown

SOURCES = DATA / "source"
KINDS = {".parquet": "Parquet", ".jsonl": "JSONL", ".txt": "text", ".raw": "text", ".tokens": "text"}
EOT = "<|endoftext|>"
BATCH = 1000  # documents written at a time
SHARD_HEADER = struct.Struct("<3i")  # magic, version, tokens; of 256 int32
TOKEN_BYTES = {20240520: 2, 20240801: 4}


@dataclass(frozen=True)
class Corpus:
    name: str
    divide: Callable           # [File] -> {"train": Dataset, "val": …, "test": …}, with a column "text"
    hub: str = ""              # a data set of the Hugging Face Hub
    revision: str = "main"
    files: tuple = ()          # which of its files; or
    urls: tuple = ()           # (URL, file name, SHA-256 or None)
    documents: int = 0         # of all parts, as published; 0: not known
    tokens: dict = field(default_factory=dict)  # of each part as published, with GPT-2's vocabulary


@dataclass(frozen=True)
class File:
    path: Path
    name: str                  # below the folder it was found in
    kind: str                  # of KINDS
    size: int
    modified: int              # ns


# ----------------------------------------------------------------------------------------------------------
# Fetching

def fetch_hub(corpus, folder):
    """Brings the corpus's files from the Hub; files that are there are not fetched again."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    host = urlparse(constants.ENDPOINT).hostname
    address = f"{constants.ENDPOINT}/datasets/{corpus.hub}/tree/{corpus.revision}"
    what = f"{' and '.join(corpus.files)} of {address}"
    folder.mkdir(parents=True, exist_ok=True)
    reason = fetch.why_unresolved(host)
    if reason:
        raise fetch.unreachable(host, reason, what, folder, folder)
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        snapshot_download(corpus.hub, repo_type="dataset", revision=corpus.revision,
                          allow_patterns=list(corpus.files), local_dir=folder)
    except Exception as error:  # the Hub's client lets the errors of several libraries through
        if getattr(error, "errno", None) in fetch.OF_THE_DISK:
            raise
        raise fetch.unreachable(host, str(error).split("\n")[0], what, folder, folder) from error


def fetch_corpus(corpus):
    """The folder with the corpus's files, fetched unless an earlier run has fetched all of them."""
    folder = SOURCES / corpus.name
    complete = folder / ".complete"
    if not complete.exists():
        if corpus.hub:
            fetch_hub(corpus, folder)
        fetch.download_all(corpus.urls, folder)
        find_files([folder])  # refuses where the Hub had none
        complete.touch()
    return folder


# ----------------------------------------------------------------------------------------------------------
# Files on disk

def file_of(path, name):
    stat = path.stat()
    return File(path.resolve(), name, KINDS[path.suffix], stat.st_size, stat.st_mtime_ns)


def find_files(paths):
    """The files named and those in the folders named, by path. All are of one kind."""
    found = []
    readable = "Parquet (.parquet), JSONL (.jsonl) and text (.txt, .raw, .tokens)"
    for path in paths:
        if path.is_dir():
            inside = [(p, p.relative_to(path)) for p in sorted(path.rglob("*")) if p.suffix in KINDS]
            files = [file_of(p, str(name)) for p, name in inside
                     if p.is_file() and not any(part.startswith(".") for part in name.parts)]
            if not files:
                raise Refused(f"{path}: holds no file that can be read: {readable} can be")
            found += files
        elif not path.exists():
            raise Refused(f"{path}: is not there")
        elif path.suffix not in KINDS:
            raise Refused(f"{path}: is of no known kind: {readable} can be read")
        else:
            found.append(file_of(path, path.name))
    first = {}
    for file in found:
        first.setdefault(file.kind, file)
    if len(first) > 1:
        names = " and ".join(shown(file.path) for file in first.values())
        raise Refused(f"{' and '.join(first)} are mixed ({names}): name the files that are meant")
    return found


def jsonl_documents(path):
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise Refused(f"{path}: line {number}: is not JSON: {error}") from error
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                raise Refused(f"{path}: line {number}: has no \"text\" that is a string")
            yield row["text"]


def text_documents(path):
    """Documents stand between lines <|endoftext|>; neither that line nor the line end before it is text."""
    lines = []
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in file:
                if line.rstrip("\r\n") != EOT:
                    lines.append(line)
                elif lines:
                    yield "".join(lines).removesuffix("\n").removesuffix("\r")
                    lines.clear()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise Refused(f"{path}: is not UTF-8: {error.reason}, byte 0x{byte:02x}") from error
    if lines:
        yield "".join(lines)


def rows(files):
    """Rows for `datasets`. Its cache is keyed by the arguments: a File's size and time tell a changed one."""
    for file in files:
        documents = jsonl_documents if file.kind == "JSONL" else text_documents
        for text in documents(file.path):
            if text:
                yield {"text": text}


def parquet_rows(files):
    """How many rows the files have; refuses what is no Parquet with a column text."""
    import pyarrow
    import pyarrow.parquet

    count = 0
    for file in files:
        try:
            head = pyarrow.parquet.read_metadata(file.path)
        except pyarrow.ArrowInvalid as error:
            raise Refused(f"{file.path}: is not whole Parquet: {str(error).splitlines()[0]}") from error
        names = head.schema.to_arrow_schema().names
        if "text" not in names:
            raise Refused(f"{file.path}: has no column text, only {', '.join(names)}")
        count += head.num_rows
    return count


def load(files):
    """The documents of the files as one Dataset."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    parquet = files[0].kind == "Parquet"
    if not (parquet_rows(files) if parquet else any(rows(files))):
        raise Refused(f"no document in {', '.join(shown(file.path) for file in files)}")
    try:
        if parquet:
            documents = datasets.load_dataset("parquet", data_files=[str(file.path) for file in files],
                                              split="train", columns=["text"])
        else:
            features = datasets.Features({"text": datasets.Value("large_string")})
            documents = datasets.Dataset.from_generator(rows, features, gen_kwargs={"files": files})
    except datasets.exceptions.DatasetGenerationError as error:
        cause = error.__cause__
        raise cause if isinstance(cause, Refused) else Refused(str(cause or error).splitlines()[0]) from error
    return documents


# ----------------------------------------------------------------------------------------------------------
# Dividing

def at_random(test_size=0.0005, seed=2357):
    """A share of the documents for validation, as nanoGPT's published runs on OpenWebText divide it. With the
    same library and seed the shards, one after the other, are that run's train.bin and val.bin."""
    def divide(files):
        documents = load(files)
        if len(documents) < 2:
            raise Refused("one document cannot be divided into train and val: separate documents by lines "
                          f"of {EOT}")
        parts = documents.train_test_split(test_size=test_size, seed=seed, shuffle=True)
        return {"train": parts["train"], "val": parts["test"]}
    return divide


def part_of(file):
    """train, val or test, by the last of these words in the file's name."""
    words = re.findall(r"(?<![a-z])(train|val|test)", file.name.lower())
    if not words:
        raise Refused(f"{file.name}: train, valid or test must stand in the name, to tell which part it is")
    return words[-1]


def by_name(cut=None):
    """The parts the corpus comes in, told by their files' names. `cut` makes other documents of a part's:
    (part, texts) -> texts."""
    def divide(files):
        import datasets

        parts = {}
        for file in files:
            parts.setdefault(part_of(file), []).append(file)
        for part, of_part in parts.items():
            if len({file.path.suffix for file in of_part}) > 1:
                names = " and ".join(file.name for file in of_part)
                raise Refused(f"{names}: two versions of {part}? Name the files that are meant")
        loaded = {part: load(parts[part]) for part in ("train", "val", "test") if part in parts}
        if not cut:
            return loaded
        return {part: datasets.Dataset.from_dict({"text": cut(part, documents["text"])})
                for part, documents in loaded.items()}
    return divide


# ----------------------------------------------------------------------------------------------------------
# PREFIX.json: what the shards are made of, so that a later run adds to them only what belongs to them

def recipe_path(args):
    return args.out.with_name(args.out.name + ".json")


def standing_shards(args):
    return [path for path in args.out.parent.glob("*.bin") if path.name.startswith(args.out.name) and
            re.fullmatch(r"_(train|val|test)_\d{6}\.bin", path.name[len(args.out.name):])]


def remove_earlier(args):
    for path in standing_shards(args):
        path.unlink()
    recipe_path(args).unlink(missing_ok=True)


def write_recipe(args, recipe):
    temporary = recipe_path(args).with_name(args.out.name + ".json.tmp")
    temporary.write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, recipe_path(args))


def check_recipe(args, recipe):
    """Refuses to add to shards that were made of other things."""
    if not standing_shards(args):
        return
    path = recipe_path(args)
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        differ = [key for key in recipe if earlier[key] != recipe[key]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(f"{shown(args.out)}_*.bin: shards of another origin stand there ({shown(path)} does "
                      "not tell theirs): choose another --out, or --overwrite") from error
    if differ:
        raise Refused(f"{shown(path)}: the shards there were made with other {', '.join(differ)}: go on "
                      "with the same, or choose another --out, or --overwrite")


def remove_unfinished(args):
    """What a killed run was making."""
    for folder in args.out.parent.glob(f"{args.out.name}.*.tmp"):
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)


# ----------------------------------------------------------------------------------------------------------
# Shards

def shard_tokens(path):
    """How many tokens a whole shard holds."""
    with open(path, "rb") as file:
        head = file.read(SHARD_HEADER.size)
    if len(head) == SHARD_HEADER.size:
        magic, _, tokens = SHARD_HEADER.unpack(head)
        if path.stat().st_size == 1024 + tokens * TOKEN_BYTES.get(magic, 0):
            return tokens
    raise Refused(f"{shown(path)}: is not a whole shard: remove it and run again")


def write_documents(pipe, documents, progress):
    for first in range(0, len(documents), BATCH):
        texts = documents[first:first + BATCH]["text"]
        pipe.write("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode())
        progress.update(len(texts))


def make_shard(path, documents, args, recipe, progress):
    """Tokenizes the documents into one shard. If this process is killed, the tokenizer takes the end of its
    input for the end of the text; what it then makes stays in the temporary folder, which nobody reads."""
    with tempfile.TemporaryDirectory(prefix=f"{args.out.name}.", suffix=".tmp", dir=path.parent) as folder:
        command = [args.binary.absolute(), "tokenize", "--tokenizer", args.tokenizer, "--jsonl",
                   "--out", f"{folder}/shard", "--val-frac", "0", "--shard-tokens", "2147483647", "--quiet", "-"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE,
                                   start_new_session=True)  # Ctrl-C is for this process
        try:
            with process.stdin as pipe:
                write_documents(pipe, documents, progress)
        except BrokenPipeError:
            pass  # the tokenizer has ended; its own line says why
        except BaseException:
            process.kill()
            process.wait()
            raise
        error = process.stderr.read().decode(errors="replace").strip()
        if process.wait():
            raise Refused(f"{shown(path)}: {error or f'tokenize ended with status {process.returncode}'}")
        made = sorted(Path(folder).iterdir())
        if len(made) > 1:
            raise Refused(f"--shard-documents {args.shard_documents}: these make more than 2^31 tokens")
        write_recipe(args, recipe)  # before the shard, which without it would be of unknown origin
        os.replace(made[0], path)


def shard_ranges(args, parts):
    """(path, part, first document, document after the last) of each shard."""
    for part, documents in parts.items():
        for i, first in enumerate(range(0, len(documents), args.shard_documents)):
            path = args.out.with_name(f"{args.out.name}_{part}_{i:06d}.bin")
            yield path, part, first, min(first + args.shard_documents, len(documents))


def make_shards(corpus, args, recipe, parts):
    """Makes the shards that are missing. Returns the tokens of each part."""
    from tqdm import tqdm

    tokens = dict.fromkeys(parts, 0)
    shards = [(*shard, shard[0].exists()) for shard in shard_ranges(args, parts)]
    done = sum(end - first for _, _, first, end, stood in shards if stood)
    with tqdm(desc=corpus.name, initial=done, total=sum(map(len, parts.values())), unit=" documents",
              unit_scale=True, disable=None) as progress:
        for path, part, first, end, stood in shards:
            if not stood:
                make_shard(path, parts[part].select(range(first, end)), args, recipe, progress)
            tokens[part] += shard_tokens(path)
            progress.write(f"{shown(path)}: {end - first:,} documents, {shard_tokens(path):,} tokens"
                           f"{', stood already' if stood else ''}")
    return tokens


# ----------------------------------------------------------------------------------------------------------
# The command

def say_counts(corpus, parts, tokens, gpt2):
    """Prints the counts of each part beside the published ones; refuses where they should be equal."""
    documents = sum(map(len, parts.values()))
    comparable = corpus.tokens and gpt2 and documents == corpus.documents
    wrong = []
    for part, count in tokens.items():
        published = corpus.tokens.get(part)
        line = f"{part}: {count:,} tokens of {len(parts[part]):,} documents"
        if comparable and published:
            line += ", as published" if count == published else f"; published are {published:,}"
            if count != published:
                wrong.append(part)
        print(line)
    if corpus.documents and documents != corpus.documents:
        print(f"published are {corpus.documents:,} documents, here are {documents:,}: not the published "
              "corpus")
    elif corpus.tokens and not gpt2:
        print("the published counts are of GPT-2's vocabulary: not compared")
    if wrong:
        raise Refused(f"{' and '.join(wrong)}: the counts are not the published ones: other texts, or in "
                      "another order")


def parse(corpus):
    parser = OneLineParser(description=f"Makes token shards of {corpus.name}.")
    parser.add_argument("--from", dest="source", type=Path, nargs="+", metavar="PATH",
                        help="Parquet, JSONL or text on this disk, files or folders, instead of a download")
    parser.add_argument("--out", type=Path, default=DATA / corpus.name / corpus.name, metavar="PREFIX",
                        help="shards are PREFIX_train_000000.bin … (default: "
                             f"data/{corpus.name}/{corpus.name})")
    parser.add_argument("--tokenizer", type=Path, default=vocab.VOCAB, metavar="FILE",
                        help="default: data/vocab.bpe, which dev/data/vocab.py brings")
    parser.add_argument("--binary", type=Path, default=DATA.parent / "train_gpt_tost", metavar="FILE",
                        help="the program that tokenizes (default: ./train_gpt_tost)")
    parser.add_argument("--shard-documents", type=int, default=80000, metavar="N",
                        help="documents a shard (default: 80000, of OpenWebText some 90M tokens)")
    parser.add_argument("--overwrite", action="store_true", help="begin anew where shards stand")
    args = parser.parse_args()
    if args.shard_documents < 1:
        parser.error(f"--shard-documents {args.shard_documents}: 1 or more is possible")
    return args


def build(corpus, args):
    if not os.access(args.binary, os.X_OK):
        raise Refused(f"{shown(args.binary)}: is not there or no program: make train_gpt_tost")
    if not args.tokenizer.is_file():
        raise Refused(f"{shown(args.tokenizer)}: is not there: dev/data/vocab.py brings GPT-2's")
    files = find_files(args.source or [fetch_corpus(corpus)])
    parts = corpus.divide(files)
    tokenizer = fetch.sha256(args.tokenizer)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.overwrite:
        remove_earlier(args)
    recipe = {
        "corpus": corpus.name,
        "tokenizer": tokenizer,
        "documents a shard": args.shard_documents,
        "documents": {part: len(documents) for part, documents in parts.items()},
        "files": [[file.name, file.size] for file in files],
    }
    check_recipe(args, recipe)
    remove_unfinished(args)
    tokens = make_shards(corpus, args, recipe, parts)
    say_counts(corpus, parts, tokens, tokenizer == vocab.SHA256)


def main(corpus):
    args = parse(corpus)
    fetch.run(lambda: build(corpus, args))
