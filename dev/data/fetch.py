"""Files from the network or from the user's own disk, checked before they are put in place.

What the scripts beside this file share: one line for the user where something is refused, downloads that go
on after a break, SHA-256. Needs Python 3.10 and tqdm.
"""
import argparse
import errno
import hashlib
import os
import shutil
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlparse

DATA = Path(__file__).resolve().parents[2] / "data"
CHUNK = 1 << 20  # bytes
TIMEOUT = 60     # seconds without a byte
OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}


class Refused(Exception):
    """What cannot be done and the way out, in one line."""


class OneLineParser(argparse.ArgumentParser):
    """A wrong command line is one line on stderr, status 2."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def run(main):
    """Runs a script's main: what it refuses is one line on stderr, status 1."""
    script = os.path.basename(sys.argv[0])
    try:
        main()
    except Refused as refused:
        sys.exit(f"{script}: {refused}")
    except ModuleNotFoundError as missing:
        sys.exit(f"{script}: needs the Python package {missing.name}: pip install -r dev/requirements.txt")
    except OSError as error:
        sys.exit(f"{script}: {error}")
    except KeyboardInterrupt:
        print(f"{script}: stopped: the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def shown(path):
    """The path as the user would type it here: relative where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def check_sha256(path, expected, name):
    """Refuses a file of other bytes. `name` is what the user knows it by."""
    found = sha256(path)
    if found != expected:
        raise Refused(f"{name}: SHA-256 is {found}, not the published {expected}: damaged, or another file")


def unreachable(host, reason, what, place, option):
    """One line: what to fetch by hand, where to put it, what to run then."""
    return Refused(f"{host} cannot be reached ({reason}): fetch {what} by hand into {shown(place)}, "
                   f"then run again with --from {shown(option)}")


def why_unresolved(host):
    """Why the host's name is not resolved; None where it is, or where a proxy would do that."""
    if urllib.request.getproxies():
        return None
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        return error.strerror or str(error)
    return None


def receive(url, part):
    """Appends to `part` what it lacks of the URL's bytes."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        if response.status != 206:  # the server sends the whole
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with open(part, "ab" if have else "wb") as file, \
                tqdm(desc=part.stem, total=total, initial=have, unit="B", unit_scale=True,
                     disable=None) as bar:
            while block := response.read(CHUNK):
                file.write(block)
                bar.update(len(block))
                have += len(block)
    if total is not None and have < total:
        raise Refused(f"{url}: broke off after {have:,} of {total:,} bytes: run again to go on")


def download(url, path, expected=None, what=None, option=None):
    """Brings the URL to `path`, whole and with that SHA-256 or not at all. What a broken attempt brought is
    kept in `path`.part and continued. Without a network the user is told to fetch `what` (default: the URL)
    by hand and to name `option` (default: the path) with --from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        try:
            receive(url, part)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not part.exists():  # 416: there is nothing after what we have
                raise
            part.unlink()
            receive(url, part)
    except urllib.error.HTTPError as error:
        raise Refused(f"{url}: the server says {error.code} {error.reason}: fetch it from elsewhere into "
                      f"{shown(path.parent)}, then run again with --from {shown(option or path)}") from error
    except OSError as error:  # URLError and time-outs are of this kind
        if error.errno in OF_THE_DISK:
            raise
        reason = getattr(error, "reason", error)
        raise unreachable(urlparse(url).hostname, getattr(reason, "strerror", None) or reason,
                          what or url, path.parent, option or path) from error
    if expected:
        try:
            check_sha256(part, expected, url)
        except Refused:
            part.unlink()
            raise
    os.replace(part, path)


def download_all(urls, folder):
    """Brings each (URL, file name, SHA-256 or None) to the folder, but for those that are there."""
    missing = [row for row in urls if not (folder / row[1]).exists()]
    for url, name, expected in missing:
        what = " and ".join(row[0] for row in missing)
        download(url, folder / name, expected, what, folder)


def place(source, path):
    """Copies a file into place, whole or not at all. A file that is already the one is left alone."""
    if path.exists() and source.samefile(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    shutil.copyfile(source, temporary)
    os.replace(temporary, path)
