"""A headless Chromium, controlled over a pipe (Chrome DevTools Protocol). Needs no Python package."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
TIMEOUT = 60  # seconds for an answer


def find():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """One page. `errors` has the exceptions, console errors and blocked requests of the pages it has shown."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp()
        theirs, self.commands = os.pipe()
        self.answers, ours = os.pipe()
        theirs, ours = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs, ours))

        def connect():  # Chromium reads commands from descriptor 3 and answers on 4
            os.dup2(theirs, 3)
            os.dup2(ours, 4)
        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", f"--user-data-dir={self.profile}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=connect, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(ours)
        self.buffer, self.number, self.session, self.events, self.errors = b"", 0, None, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            if not select.select([self.answers], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no answer from Chromium in {TIMEOUT} s")
            part = os.read(self.answers, 1 << 20)
            if not part:
                raise ConnectionError(f"Chromium ended with status {self.process.wait()}")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def note(self, event):
        self.events.append(event["method"])
        if event["method"] == "Runtime.exceptionThrown":
            detail = event["params"]["exceptionDetails"]
            self.errors.append(detail.get("exception", {}).get("description") or detail["text"])
        if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(event["params"]["entry"]["text"])

    def call(self, method, **params):
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self.note(answer)

    def show(self, path, width=1280, height=900, dark=False):
        """Loads a file in a window of this size and waits until it is complete."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=False)
        self.color_scheme(dark)
        self.events.clear()
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        deadline = time.monotonic() + TIMEOUT
        while "Page.loadEventFired" not in self.events:
            event = self.receive(deadline)
            if "method" in event:
                self.note(event)

    def color_scheme(self, dark):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def value(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", expression))
        return answer["result"].get("value")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def click(self, selector, x=0.5, y=0.5):
        """Clicks at a fraction of the width and height of an element."""
        left, top, width, height = self.value(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [b.left, b.top, b.width, b.height]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=left + x * width, y=top + y * height, button="left",
                      clickCount=1)

    def picture(self, path, whole=False):
        """Writes a PNG of the window, or of the whole page."""
        png = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(png))
