"""Downloads evaluation sets, in their original format, into data/eval for `train_gpt_tost eval --task`.

Shared by lambada.py, hellaswag.py and cbt.py, each of which describes one EvalSet.

A file is copied to its destination only if all its examples are valid. Needs Python 3.10; tqdm to download.
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
    examples: int              # published number in each file
    read: Callable             # path -> its examples; raises Refused for a malformed one
    urls: tuple                # (URL, file name, SHA-256 or None) of the files, or of an archive with them


def read_jsonl(check):
    """Returns a reader of one JSON object per line. `check` returns what is wrong with an object, or None."""
    def read(path):
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    example = json.loads(line)
                    wrong = check(example) if isinstance(example, dict) else "not a JSON object"
                except ValueError as error:
                    wrong = f"not valid JSON: {error}"
                if wrong:
                    raise Refused(f"{shown(path)}: line {number}: {wrong}")
                yield example
    return read


# ----------------------------------------------------------------------------------------------------------

def unpack(archive, names, folder):
    """Extracts the named files, wherever they are in the archive. Returns their paths."""
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
    """Finds the set's files in files, folders and archives; archives are unpacked into `folder`.
    Returns {file name: path}."""
    names = [name for name, _ in evalset.files]
    candidates = []
    for source in sources:
        if not source.exists():
            raise Refused(f"{source}: not found")
        inside = sorted(source.rglob("*")) if source.is_dir() else [source]
        for path in inside:
            candidates += unpack(path, names, folder) if path.name.endswith(ARCHIVES) else [path]
    found = {path.name: path for path in candidates if path.name in names}
    if not found and len(names) == len(sources) == 1 and sources[0].is_file():
        return {names[0]: sources[0]}  # a single file may have any name
    missing = [name for name in names if name not in found]
    if missing:
        raise Refused(f"{' '.join(map(str, sources))}: does not contain {' or '.join(missing)}")
    return found


def check(evalset, path, expected):
    """Raises Refused if the file is not the published one. Returns a description of the file."""
    count = sum(1 for _ in evalset.read(path))
    if count != evalset.examples:
        raise Refused(f"{shown(path)}: {count:,} examples, not the {evalset.examples:,} published: "
                      "truncated, or a different split")
    same = expected and fetch.sha256(path) == expected
    return f"{count:,} examples{', SHA-256 as published' if same else ''}"


def build(evalset, args):
    folder = DATA / "source" / evalset.name
    targets = {name: args.out / name for name, _ in evalset.files}
    if args.source:
        found = locate(evalset, args.source, folder)
    elif all(path.exists() for path in targets.values()):
        found = targets
    else:
        fetch.download_all(evalset.urls, folder)
        found = locate(evalset, [folder], folder)
    checked = {name: check(evalset, found[name], expected) for name, expected in evalset.files}
    for name, description in checked.items():
        fetch.place(found[name], targets[name])
        print(f"{shown(targets[name])}: {description}")


def main(evalset, validation=None):
    """`validation`: the EvalSet of --validation."""
    parser = OneLineParser()
    parser.add_argument("--from", dest="source", type=Path, nargs="+", metavar="PATH",
                        help="local files, folders or archives to use instead of downloading")
    parser.add_argument("--out", type=Path, default=DATA / "eval", metavar="FOLDER",
                        help="default: data/eval")
    if validation:
        parser.add_argument("--validation", action="store_true", help="the validation set instead of the test set")
    args = parser.parse_args()
    fetch.run(lambda: build(validation if validation and args.validation else evalset, args))
