"""Puts faults between a client and a store's server, for tests: errors before and after the work, cut answers, slow answers. The faults depend on a seed and on the
number of the request."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

_BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_BROKEN = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


class Faults:
    """Faults of a share of the requests. Use `through` as the wrapper of `tests.s3_server.s3_bucket`."""

    def __init__(self, seed: int, share: float = 0.2, slow_share: float = 0.05, slow_s: float = 0.3) -> None:
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._share, self.slow_share, self.slow_s = share, slow_share, slow_s
        self.is_on = True
        self.made: Counter[str] = Counter()

    def choose(self) -> str:
        """The kind of the next request: "none", "slow", "busy" (nothing is done), "lost answer" (all is done, the answer is an error) or "cut"."""
        with self._lock:
            draw = self._random.random()
            kind = "none"
            if draw < self._share:  # a third each
                kind = ("busy", "lost answer", "cut")[int(3 * draw / self._share)]
            elif draw < self._share + self.slow_share:
                kind = "slow"
            kind = kind if self.is_on else "none"
            self.made[kind] += 1
            return kind

    def through(self, answer: Callable[[Any, Any], Iterable[bytes]]) -> Callable[[Any, Any], Iterable[bytes]]:
        """The WSGI application with faults."""

        def faulty(environ: Any, start_response: Any) -> Iterable[bytes]:
            kind = self.choose()
            if kind == "busy":  # nothing was done
                start_response(
                    "503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(_BUSY)))]
                )
                return [_BUSY]
            if kind == "lost answer":  # everything was done, but the client does not know
                b"".join(answer(environ, lambda *_: None))
                start_response(
                    "500 Internal Server Error",
                    [("Content-Type", "application/xml"), ("Content-Length", str(len(_BROKEN)))],
                )
                return [_BROKEN]
            if kind == "slow":
                time.sleep(self.slow_s)
            content = b"".join(answer(environ, start_response))
            return [content[: len(content) // 2] if kind == "cut" else content]

        return faulty
