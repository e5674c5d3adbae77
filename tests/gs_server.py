"""A bucket on a Google Cloud Storage server of the test's own. The emulator knows no conditions, so "only where there is none" is added
here; it answers one request at a time, so that looking and then writing is exclusive, as the real store's is."""

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
    """The URL of a new bucket. The environment tells the server's address, also to child processes."""
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

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)  # a line for each request slows it down
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
