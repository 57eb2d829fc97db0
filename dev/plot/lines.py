"""What the scripts tell of what goes wrong, as the trainer does: one line on stderr, exit status 1."""

import os
import sys


def why(error):
    """An error in one line: the file's name and the system's words, or the first line of a library's."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def failed(error):
    """Prints it; names come from outside, and stay one line. Returns the exit status."""
    text = why(error) if isinstance(error, OSError) else str(error)
    print("".join(c if c.isprintable() else "?" for c in text), file=sys.stderr)
    return 1


def run(main):
    """The exit status of main, which reads and writes files under a `try` of its own: here stdout alone can fail."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered would fail again at the end
        return failed(f"stdout cannot be written: {why(error)}")
    except KeyboardInterrupt:
        return 130
