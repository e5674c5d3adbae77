"""Controls a headless Chromium in tests, by the DevTools protocol over two pipes. It needs no package and no port."""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Chromium reads commands from file descriptor 3 and writes answers to descriptor 4.
_EXEC = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
_TIMEOUT_S = 120.0


def find_chromium() -> str | None:
    """The path of the Chromium program, or None if it is not installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One browser tab. `errors`: errors of the console and failed loads; `requests`: all requested addresses."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest, self._number = write, read, b"", 0
        self._session: str | None = None
        self._loaded = False
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command to the browser and waits for its answer."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str, width: int, height: int, scheme: str = "light") -> None:
        """Opens a page in a window of this size, with this colour scheme. Returns when the page is loaded."""
        self.errors.clear()
        self.requests.clear()
        self._loaded = False
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._loaded:
            self._receive(deadline)
        # After the page is loaded, some requests still run. They may fail.
        self.evaluate("new Promise(done => setTimeout(done, 50))")

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page. Waits for promises."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"the browser did not answer within {_TIMEOUT_S:g} s"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        self._look(message.get("method"), message.get("params", {}))
        return message

    def _look(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert", "warning"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{parameters['entry']['text']} ({parameters['entry'].get('url', '')})")
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """Starts the browser with a new profile in the empty folder `profile`. At the end of the `with` block the browser ends."""
    ours, theirs = os.pipe(), os.pipe()
    # Descriptors from 10 on, because the child process overwrites 3 and 4.
    commands, answers = fcntl.fcntl(ours[0], fcntl.F_DUPFD, 10), fcntl.fcntl(theirs[1], fcntl.F_DUPFD, 10)
    arguments = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _EXEC, str(commands), str(answers), *arguments],
        pass_fds=(commands, answers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for descriptor in (commands, answers, ours[0], theirs[1]):
        os.close(descriptor)
    try:
        yield Browser(ours[1], theirs[0])
    finally:
        os.close(ours[1])  # the browser ends when its command pipe is closed
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        os.close(theirs[0])
