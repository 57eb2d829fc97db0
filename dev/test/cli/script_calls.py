"""Shared by exchange.py and pictures.py: reports checks to test_exchange.sh and calls the main() of scripts."""

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO


def check(what, good):
    print(f"{'ok' if good else 'FAILED exchange:'} {what}", flush=True)


def call(main, *arguments):
    """Exit status, stdout and stderr of a script's main()."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), err.getvalue()
