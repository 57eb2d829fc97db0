"""Shared by the scripts in this folder: downloads, SHA-256 checks, text files. Needs Python 3.11 or later."""
import hashlib
import json
import os
import socket
import sys
import urllib.request
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("plot", "reference")]

DATA = Path(__file__).resolve().parents[2] / "data"
TIMEOUT = 60     # seconds without data


def shown(path):
    """The path relative to the working directory, if that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path, expected, name):
    """Raises ValueError if the file's SHA-256 is not the expected one. `name` is its name in the message."""
    found = sha256(path)
    if found != expected:
        raise ValueError(f"{name}: SHA-256 is {found}, not the published {expected}: damaged, or a different file")


def download(url, path, expected=None):
    """Downloads the URL to `path`, which is written only if the download is complete and has the expected SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    socket.setdefaulttimeout(TIMEOUT)
    try:
        urllib.request.urlretrieve(url, part)
        if expected:
            check_sha256(part, expected, url)
        os.replace(part, path)
    except OSError as error:
        raise ValueError(f"{url}: {getattr(error, 'reason', error)}: download it to {shown(path)} yourself, or give "
                         "another copy to --from") from error
    finally:
        part.unlink(missing_ok=True)


def download_all(urls, folder):
    """Downloads each (URL, file name, SHA-256 or None) that is missing in the folder."""
    for url, name, expected in urls:
        if not (folder / name).exists():
            download(url, folder / name, expected)


def text_lines(path, errors="strict"):
    """(number, line) of a UTF-8 text file, without a byte order mark."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError as error:
                raise ValueError(f"{shown(path)}: line {number}: not UTF-8: byte 0x{line[error.start]:02x}: unpack "
                                 "it, or convert it with iconv -f ENCODING -t UTF-8") from error


def json_object(line):
    """The JSON object of a line; raises ValueError."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{line.strip()[:20]} is not a JSON object")
    return row
