"""Shared by the tests in Python: prints the lines that checks_of in lib.sh counts, and calls scripts."""

import importlib.util
import os
import shlex
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


def refuses_all(section, **values):
    """Runs the cases of a section of script_refusals.txt. values: lists of arguments, or what its expressions use. A
    message must be one line; that of argparse, with status 2, has several."""
    values["read"] = lambda path: Path(path).read_bytes()
    table = Path(__file__).with_name("script_refusals.txt").read_text(encoding="utf-8")
    assert f"\n# ---- {section} ----\n" in table
    for line in table.partition(f"# ---- {section} ----\n")[2].partition("# ----")[0].splitlines():
        if line.startswith(": "):
            _, path, content = line.split(" ", 2)
            write(path, eval(content, values))
        elif line:
            wanted, command, *texts = line.split(" | ")
            script, *words = shlex.split(command)
            arguments = [a for word in words for a in
                         (values[word[1:]] if word.startswith("$") else [word.replace("\\n", "\n")])]
            before = set(os.listdir())
            status, _, err = call(importlib.import_module(script.removesuffix(".py")).main, *arguments)
            check(f"{command}: status {status}, expected {wanted} and {texts}: {err}", status == int(wanted)
                  and (err.count("\n") == 1 or status == 2) and all(text in err for text in texts))
            check(f"{command} writes nothing", set(os.listdir()) == before)


def trainer(*arguments):
    """Stdout of the trainer, which must succeed."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True)
    check(f"{' '.join(map(str, arguments))}: {done.stderr.decode(errors='replace')[-200:]}", done.returncode == 0)
    return done.stdout
