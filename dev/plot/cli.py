"""Shared by the scripts in dev/plot and dev/reference: options, errors and output files. As in the trainer, an error
is one line on stderr and exit status 1."""

import argparse
import contextlib
import functools
import importlib.util
import os
import shutil
import sys
from pathlib import Path


def option_parser(doc):
    """An ArgumentParser whose --help starts with the script's docstring, with its line breaks."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def need(*packages):
    """Ends the program with one line if Python lacks one of the packages."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"{sys.argv[0]} needs {', '.join(packages)}: pip install {' '.join(missing)}")


def describe(error):
    """One line for an error: file name and system message, or the first line of its message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def fail(error):
    """Prints the error on one line, with unprintable characters as "?". Returns the exit status."""
    text = describe(error) if isinstance(error, OSError) else str(error)
    if isinstance(error, ModuleNotFoundError):
        text += ": pip install -r dev/requirements-data.txt"
    print("".join(c if c.isprintable() else "?" for c in text), file=sys.stderr)
    return 1


def command(*errors):
    """Makes main(arguments) return the exit status: these errors, ValueError and OSError of files are printed."""
    def wrap(main):
        @functools.wraps(main)
        def wrapped(arguments=None):
            try:
                main(arguments)
            except (OSError, ValueError, *errors) as error:
                if isinstance(error, OSError) and error.errno and error.filename is None:
                    raise   # of stdout
                return fail(error)
            return 0
        return wrapped
    return wrap


@contextlib.contextmanager
def about(path, *errors):
    """Adds the file's name to errors whose message does not contain it."""
    try:
        yield
    except (OSError, ValueError, *errors) as error:
        if str(path) in str(error) or isinstance(error, OSError) and error.filename:
            raise
        raise ValueError(f"{path}: {describe(error)}") from error


@contextlib.contextmanager
def new_path(path):
    """A temporary path for a file or folder to be created, which then gets the name `path`."""
    part = path.with_name(path.name + ".tmp")
    if path.exists():
        raise ValueError(f"{path}: already exists: remove it, or choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)
    try:
        yield part
        os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)


def run(main):
    """Returns main's exit status. An OSError here is from stdout."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's flush at exit would fail too
        return fail(f"stdout cannot be written: {describe(error)}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def write_file(path, write):
    """Calls write(temporary path), then renames it to `path`, so that --out is never incomplete."""
    part = Path(f"{path}.tmp")
    try:
        write(part)
        os.replace(part, path)
    except OSError as error:
        raise ValueError(f"--out {path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
