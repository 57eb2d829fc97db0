"""Errors and files of the scripts in dev/plot and dev/reference: as in the trainer, an error is one line on stderr
and exit status 1."""

import argparse
import os
import sys
from pathlib import Path


def option_parser(doc):
    """An ArgumentParser whose --help starts with the script's docstring, as it is laid out."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def describe(error):
    """An error in one line: file name and system message, or the first line of the message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def fail(error):
    """Prints the error on one line, with unprintable characters as "?". Returns the exit status."""
    text = describe(error) if isinstance(error, OSError) else str(error)
    print("".join(c if c.isprintable() else "?" for c in text), file=sys.stderr)
    return 1


def run(main):
    """Returns main's exit status. main reports errors of its files itself, so an OSError here is one of stdout."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's flush at exit fails again
        return fail(f"stdout cannot be written: {describe(error)}")
    except KeyboardInterrupt:
        return 130


def write_file(path, write):
    """Calls write(temporary path), then renames: the file of --out is complete or not there at all."""
    part = Path(f"{path}.tmp")
    try:
        write(part)
        os.replace(part, path)
    except OSError as error:
        raise ValueError(f"--out {path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
