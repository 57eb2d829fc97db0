"""compare.py: compares runs and models, for all tests in Python; same_run in lib.sh does it for those in shell."""

import pathlib
import re


def timeless(log):
    """log.csv without its last two columns, which are times."""
    return re.sub(rb",[^,\n]*,[^,\n]*\n", b"\n", log)


def comparable(tree, older):
    last = max((path for path in tree if re.fullmatch(r"run/step_\d+", path)), default="")
    return {path: timeless(data) if path == "run/log.csv" else data for path, data in tree.items()
            if path not in ("run/run.lock", "run/device.txt") and (older or not path.startswith("run/step_")
                                           or f"{path}/".startswith(f"{last}/"))}


def differences(tree, reference, older=True):
    """How the folder `run` differs from that of a reference run, both as {path: bytes, or None for a folder}. All files
    must be equal, except for the times in the log, run.lock, which a killed process leaves, and device.txt, to which
    each start adds a line. older=False: compares only the last checkpoint, because a finished run that is resumed saves
    nothing and removes no old checkpoint, and a stopped run has saved other steps."""
    mine, other = comparable(tree, older), comparable(reference, older)
    return [f"{path} is missing" if path not in mine else f"{path} is extra" if path not in other else f"{path} differs"
            for path in sorted(mine.keys() | other.keys()) if mine.get(path, "absent") != other.get(path, "absent")]


def weights(path):
    """{name: dtype, shape and bytes} of a safetensors file, or of the newest checkpoint in a folder."""
    import safetensors   # the tests of faults and ranks need no packages

    path = pathlib.Path(path)
    file = max(path.rglob("model.safetensors")) if path.is_dir() else path
    return dict(safetensors.deserialize(file.read_bytes()))
