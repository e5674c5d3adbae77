"""Runs an emulator of Google Cloud Storage with one bucket, for tests. The emulator has no conditional writes, so this module adds "create only if
the object does not exist". The emulator answers one request at a time, so checking and then writing is atomic, as on the real store."""

import contextlib
import logging
import secrets
import threading
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest


@contextlib.contextmanager
def gs_bucket() -> Iterator[str]:
    """Yields the URL of a new bucket. Environment variables have the server's address, so child processes find the server too."""
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
