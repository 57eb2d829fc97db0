"""Evaluation sets, kept as their original files in data/eval for `train_gpt_tost eval --task`.

What lambada.py, hellaswag.py and cbt.py share: each of those is one row.

A file is checked, example by example, before it is put in place. Needs Python 3.10, and tqdm to download.
"""
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fetch
from fetch import DATA, OneLineParser, Refused, shown

ARCHIVES = (".tgz", ".tar.gz", ".tar")


@dataclass(frozen=True)
class EvalSet:
    name: str
    files: tuple               # (file name, SHA-256 or None)
    examples: int              # in each file, as published
    read: Callable             # path -> its examples; refuses what is none
    urls: tuple                # (URL, file name, SHA-256 or None): the files, or an archive with them


def read_jsonl(check):
    """A reader of one JSON object a line, each of which passes `check`; it returns what is wrong, or None."""
    def read(path):
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    example = json.loads(line)
                    wrong = check(example) if isinstance(example, dict) else "is no JSON object"
                except ValueError as error:
                    wrong = f"is not JSON: {error}"
                if wrong:
                    raise Refused(f"{shown(path)}: line {number}: {wrong}")
                yield example
    return read


# ----------------------------------------------------------------------------------------------------------

def unpack(archive, names, folder):
    """The named files of an archive, wherever they stand in it."""
    found = []
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = os.path.basename(member.name)
                if member.isfile() and name in names:
                    path = folder / name
                    folder.mkdir(parents=True, exist_ok=True)
                    temporary = path.with_name(name + ".tmp")
                    temporary.write_bytes(tar.extractfile(member).read())
                    os.replace(temporary, path)
                    found.append(path)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Refused(f"{shown(archive)}: cannot be unpacked: {error}") from error
    return found


def locate(evalset, sources, folder):
    """{file name: path} of the set's files among files, folders and archives. Archives go into `folder`."""
    names = [name for name, _ in evalset.files]
    candidates = []
    for source in sources:
        if not source.exists():
            raise Refused(f"{source}: is not there")
        inside = sorted(source.rglob("*")) if source.is_dir() else [source]
        for path in inside:
            candidates += unpack(path, names, folder) if path.name.endswith(ARCHIVES) else [path]
    found = {path.name: path for path in candidates if path.name in names}
    if not found and len(names) == len(sources) == 1 and sources[0].is_file():
        return {names[0]: sources[0]}  # the file under another name
    missing = [name for name in names if name not in found]
    if missing:
        raise Refused(f"{' '.join(map(str, sources))}: holds no {' and no '.join(missing)}")
    return found


def check(evalset, path, expected):
    """Refuses a file that is none of the set's. Returns what can be said of it."""
    count = sum(1 for _ in evalset.read(path))
    if count != evalset.examples:
        raise Refused(f"{shown(path)}: {count:,} examples, not the {evalset.examples:,} published: cut "
                      "short, or another part")
    same = expected and fetch.sha256(path) == expected
    return f"{count:,} examples{', SHA-256 as published' if same else ''}"


def build(evalset, args):
    folder = DATA / "source" / evalset.name
    standing = {name: args.out / name for name, _ in evalset.files}
    if args.source:
        found = locate(evalset, args.source, folder)
    elif all(path.exists() for path in standing.values()):
        found = standing
    else:
        fetch.download_all(evalset.urls, folder)
        found = locate(evalset, [folder], folder)
    said = {name: check(evalset, found[name], expected) for name, expected in evalset.files}
    for name, words in said.items():
        fetch.place(found[name], standing[name])
        print(f"{shown(standing[name])}: {words}")


def main(evalset):
    parser = OneLineParser(description=f"Brings the original files of {evalset.name} to data/eval.")
    parser.add_argument("--from", dest="source", type=Path, nargs="+", metavar="PATH",
                        help="files, folders or archives on this disk, instead of a download")
    parser.add_argument("--out", type=Path, default=DATA / "eval", metavar="FOLDER",
                        help="default: data/eval")
    args = parser.parse_args()
    fetch.run(lambda: build(evalset, args))
