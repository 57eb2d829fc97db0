"""Shared by the scripts in dev/plot and dev/reference: options, errors and output files. As in the trainer, an error
is one line on stderr and exit status 1."""

import argparse
import os
import sys
from pathlib import Path


def option_parser(doc):
    """An ArgumentParser whose --help starts with the script's docstring, with its line breaks."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def describe(error):
    """One line for an error: file name and system message, or the first line of its message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def fail(error):
    """Prints the error on one line, with unprintable characters as "?". Returns the exit status."""
    text = describe(error) if isinstance(error, OSError) else str(error)
    print("".join(c if c.isprintable() else "?" for c in text), file=sys.stderr)
    return 1


def run(main):
    """Returns main's exit status. main handles errors of its own files; an OSError here is from stdout."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's flush at exit would fail too
        return fail(f"stdout cannot be written: {describe(error)}")
    except KeyboardInterrupt:
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
