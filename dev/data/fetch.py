"""Shared by the scripts in this folder: one-line error messages, resumable downloads, SHA-256 checks.

A download is renamed to its final name only after its checksum is verified. Needs Python 3.11 or later.
"""
import argparse
import hashlib
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlparse

DATA = Path(__file__).resolve().parents[2] / "data"
CHUNK = 1 << 20  # bytes
TIMEOUT = 60     # seconds without data
# Beginnings of files that are not text: (name, what to do)
BEGINNINGS = {b"\x1f\x8b": ("gzip", "gunzip it"), b"\x28\xb5\x2f\xfd": ("zstd", "unzstd it"),
              b"\xfd7zXZ": ("xz", "unxz it"), b"BZh": ("bzip2", "bunzip2 it"), b"PK\3\4": ("zip", "unzip it"),
              b"PAR1": ("Parquet", "convert it with datasets.Dataset.from_parquet(FILE).to_json(OUT)"),
              b"%PDF-": ("PDF", "convert it to text"), b"\xff\xfe": ("UTF-16", "convert it with iconv -t UTF-8"),
              b"\xfe\xff": ("UTF-16", "convert it with iconv -t UTF-8")}


class Refused(Exception):
    """A user error: one line that says what is wrong and how to fix it."""


class OneLineParser(argparse.ArgumentParser):
    """--help starts with the script's docstring; usage errors are one line, with status 2."""

    def __init__(self):
        super().__init__(description=sys.modules["__main__"].__doc__,
                         formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def run(main):
    """Runs a script's main. Errors are reported in one line on stderr, with status 1."""
    script = os.path.basename(sys.argv[0])
    try:
        main()
    except Refused as refused:
        sys.exit(f"{script}: {refused}")
    except ModuleNotFoundError as missing:
        sys.exit(f"{script}: needs the Python package {missing.name}: pip install -r dev/requirements-data.txt")
    except OSError as error:
        sys.exit(f"{script}: {error}")
    except KeyboardInterrupt:
        print(f"{script}: interrupted: run the same command again to resume", file=sys.stderr)
        sys.exit(130)


def shown(path):
    """The path relative to the working directory, if that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def check_sha256(path, expected, name):
    """Raises Refused if the file's SHA-256 is not the expected one. `name` is its name in the message."""
    found = sha256(path)
    if found != expected:
        raise Refused(f"{name}: SHA-256 is {found}, not the published {expected}: damaged, or a different file")


def unreachable(host, reason, what, place, option):
    """The error for an unreachable host: what to download manually, where to put it, what to run next."""
    return Refused(f"{host} cannot be reached ({reason}): download {what} manually into "
                   f"{shown(place)}, then run again with --from {shown(option)}")


def receive(url, part):
    """Downloads the URL into the file `part`, resuming after the bytes that it already contains. Raises HTTPError 416
    if it contains all of them."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        if response.status != 206:  # the server ignored the range and sent the whole file
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with open(part, "ab" if have else "wb") as file:
            while block := response.read(CHUNK):
                file.write(block)
                have += len(block)
                if sys.stderr.isatty():
                    print(f"\r{part.stem}: {have / 1e6:,.0f}{f' of {total / 1e6:,.0f}' if total else ''} MB",
                          end="" if have != total else "\n", file=sys.stderr, flush=True)
    if total is not None and have < total:
        raise Refused(f"{url}: connection closed after {have:,} of {total:,} bytes: run again to resume")


def download(url, path, expected=None, what=None, option=None):
    """Downloads the URL to `path`, which is written only if the download is complete and has the expected SHA-256. An
    interrupted download stays in `path`.part and is resumed by the next call. If the host is unreachable, the error
    asks the user to download `what` (default: the URL) manually and to pass `option` (default: the path) to --from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        receive(url, part)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise Refused(f"{url}: HTTP {error.code} {error.reason}: download it from elsewhere into "
                          f"{shown(path.parent)}, then run again with --from {shown(option or path)}") from error
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        raise unreachable(urlparse(url).hostname, reason, what or url, path.parent, option or path) from error
    try:
        if expected:
            check_sha256(part, expected, url)
    except Refused:
        part.unlink()
        raise
    os.replace(part, path)


def download_all(urls, folder):
    """Downloads each (URL, file name, SHA-256 or None) that is missing in the folder."""
    missing = [row for row in urls if not (folder / row[1]).exists()]
    for url, name, expected in missing:
        what = " and ".join(row[0] for row in missing)
        download(url, folder / name, expected, what, folder)


def text_lines(path, errors="strict"):
    """(number, line) of a UTF-8 text file, without a byte order mark. Other files raise Refused."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                for beginning, (kind, remedy) in BEGINNINGS.items():
                    if line.startswith(beginning):
                        raise Refused(f"{shown(path)}: is {kind}, not text: {remedy} first")
                line = line.removeprefix(b"\xef\xbb\xbf")
            try:
                yield number, line.decode(errors=errors)
            except UnicodeDecodeError as error:
                raise Refused(f"{shown(path)}: line {number}: not UTF-8: byte 0x{line[error.start]:02x}: convert the "
                              "file with iconv -f ENCODING -t UTF-8, such as latin1 or gb18030") from error


def json_object(line):
    """The JSON object of a line; raises ValueError."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{line.strip()[:20]} is not a JSON object")
    return row


def write(path, content):
    """Writes bytes atomically."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
