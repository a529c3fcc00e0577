"""Drive a headless Chromium over its debugging pipe: load a page, ask it questions, listen."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """The browser of this machine, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One tab. The protocol is JSON, a zero byte after each message, on descriptors 3 and 4."""

    def __init__(self, write_end: int, read_end: int) -> None:
        self.write_end, self.read_end = write_end, read_end
        self.received = b""
        self.last_id = 0
        self.session: str | None = None
        self.complaints: list[str] = []  # errors and warnings of the console, exceptions
        self.requests: list[str] = []  # addresses the page asked for
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_end, data) :]
        deadline = time.monotonic() + 120
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.last_id:
                assert "error" not in answer, answer
                return answer["result"]

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message, having noted it if it is an event of interest."""
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.read_end], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            chunk = os.read(self.read_end, 1 << 16)
            assert chunk, "the browser has gone"
            self.received += chunk
        message, _, self.received = self.received.partition(b"\0")
        event = json.loads(message)
        self.note(event.get("method"), event.get("params", {}))
        return event

    def note(self, method: str | None, params: dict[str, Any]) -> None:
        """Keep complaints and requests."""
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            words = [str(word.get("value", word.get("description"))) for word in params["args"]]
            self.complaints.append(" ".join(words))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited if it is a promise."""
        answer = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Give the tab the size of a screen."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=mobile,
        )  # fmt: skip
        self.ask("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def prefer(self, scheme: str) -> None:
        """Prefer a light or dark page."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def open(self, path: Path) -> None:
        """Load a report and wait until it has drawn everything."""
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self.wait_until_drawn()

    def wait_until_drawn(self) -> None:
        """Wait until no study of a report is busy drawing."""
        self.wait("document.querySelector('.study[aria-busy=false]')")
        self.wait("!document.querySelector('.study:not([aria-busy=false])')")

    def wait(self, condition: str, seconds: float = 90) -> None:
        """Wait until a JavaScript condition holds."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"{condition} never held; {self.complaints}"
            time.sleep(0.05)


@contextlib.contextmanager
def browser(program: str) -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it."""
    to_browser, write_end = os.pipe()
    read_end, from_browser = os.pipe()

    def place() -> None:
        # Move both away first: one of them may already be 3 or 4.
        read, write = os.dup(to_browser), os.dup(from_browser)
        os.dup2(read, 3, inheritable=True)
        os.dup2(write, 4, inheritable=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}"],
            close_fds=False,
            preexec_fn=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            tab = Browser(write_end, read_end)
            yield tab
            tab.session = None
            tab.ask("Browser.close")
            process.wait(timeout=300)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(write_end)
            os.close(read_end)


@contextlib.contextmanager
def silent_page(program: str, page: Path) -> Iterator[Browser]:
    """Open a page on a desktop screen; in the end it must have said and fetched nothing."""
    with browser(program) as opened:
        opened.resize(1280, 900)
        opened.prefer("light")
        opened.open(page)
        yield opened
        assert opened.complaints == []
        outside = {address for address in opened.requests if not address.startswith("data:")}
        assert outside == {page.resolve().as_uri()}
