"""Runs an emulator of Google Cloud Storage with one bucket, for tests. The emulator has no conditional writes, so this module adds "create only if
the object does not exist". The emulator answers one request at a time, so checking and then writing is atomic, as on the real store."""

import contextlib
import io
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.faulty_store import Faults

_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
_BROKEN = b"HTTP/1.0 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"


@contextlib.contextmanager
def gs_bucket(faults: Faults | None = None) -> Iterator[str]:
    """Yields the URL of a new bucket, whose answers have these faults. Environment variables have the server's address, so child processes find the server too."""
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    import gcsfs
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers.buckets import create_bucket
    from gcp_storage_emulator.server import RequestHandler
    from gcp_storage_emulator.storage import Storage

    class Store(Storage):
        only_new = False

        def create_file(self, bucket_name: str, file_name: str, *what: Any) -> None:
            if self.only_new:
                with contextlib.suppress(NotFound):
                    self.get_file_obj(bucket_name, file_name)
                    raise FileExistsError(file_name)
            super().create_file(bucket_name, file_name, *what)

    class Conditional(RequestHandler):
        def parse_request(self) -> bool:
            """Chooses the fault of a request that begins."""
            is_request = super().parse_request()
            self.kind = faults.choose() if faults is not None else "none"
            if self.kind == "slow":
                assert faults is not None
                time.sleep(faults.slow_s)
            if self.kind == "busy":  # nothing is done
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return is_request and self.kind != "busy"

        def handle_one_request(self) -> None:
            """Answers one request, with its fault. The connection ends after it, so that the next request can come on another one."""
            self.kind, out = "none", self.wfile
            self.wfile = answer = io.BytesIO()
            super().handle_one_request()
            self.wfile, content = out, answer.getvalue()
            if self.kind in ("busy", "lost answer"):
                content = _BUSY if self.kind == "busy" else _BROKEN
            elif self.kind == "cut":
                head, _, body = content.partition(b"\r\n\r\n")
                content = head + b"\r\n\r\n" + body[: len(body) // 2]
            out.write(content)
            out.flush()
            self.close_connection = True

        def do_POST(self) -> None:
            self.storage.only_new = parse_qs(urlsplit(self.path).query).get("ifGenerationMatch") == ["0"]
            try:
                super().do_POST()
            except FileExistsError:
                self.send_error(412, "conditionNotMet")

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)  # a log line per request is slow
    store = Store(use_memory_fs=True)
    server = HTTPServer(("127.0.0.1", 0), partial(Conditional, store))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
            gcsfs.GCSFileSystem.clear_instance_cache()
            bucket = f"graphs-{secrets.token_hex(4)}"
            create_bucket(bucket, store)
            yield f"gs://{bucket}"
            gcsfs.GCSFileSystem.clear_instance_cache()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=30)
