"""Shared by the tests in Python: prints the lines that checks_of in lib.sh counts, and calls scripts."""

import importlib.util
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compare

SUITE = Path(sys.argv[0]).stem
BINARY = sys.argv[1]


def check(what, good):
    print(("ok " if good else f"FAILED {SUITE}: ") + what.replace("\n", " | "), flush=True)


def check_same_weights(a, b):
    check(f"{a} and {b} have the same weights", compare.weights(a) == compare.weights(b))


def write(path, content):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def missing(what, *packages):
    """Whether Python has none of one of the packages; if so, prints that `what` is skipped."""
    absent = [package for package in packages if not importlib.util.find_spec(package)]
    if absent:
        print(f"skipped {SUITE}: Python has no {absent[0]}: {what}", flush=True)
    return bool(absent)


def program(path):
    """The main() of a script that imports other modules only by name: runs it as a program."""
    def main(arguments):
        sys.argv = [str(path), *arguments]
        runpy.run_path(str(path), run_name="__main__")
    main.__module__ = Path(path).name
    return main


def call(main, *arguments):
    """Exit status, stdout and stderr of a script's main()."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([str(argument) for argument in arguments]) or 0
        except SystemExit as end:
            status = end.code or 0
    if isinstance(status, str):
        err.write(f"{status}\n")
        status = 1
    return status, out.getvalue(), err.getvalue()


def succeeds(main, *arguments):
    """Stdout of a script's main(), which must succeed."""
    status, out, err = call(main, *arguments)
    check(f"{main.__module__} {' '.join(map(str, arguments))}: {err}", status == 0)
    return out


def refuses(texts, main, *arguments, status=1):
    """The script must fail with this status and print each of the texts, which " | " separates, in one line; argparse,
    with status 2, prints several."""
    actual, _, err = call(main, *arguments)
    check(f"{main.__module__} {' '.join(map(str, arguments))}: status {actual}, expected {status} and '{texts}': {err}",
          actual == status and (err.count("\n") == 1 or status == 2)
          and all(text in err for text in texts.split(" | ")))


def trainer(*arguments):
    """Stdout of the trainer, which must succeed."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True)
    check(f"{' '.join(map(str, arguments))}: {done.stderr.decode(errors='replace')[-200:]}", done.returncode == 0)
    return done.stdout
