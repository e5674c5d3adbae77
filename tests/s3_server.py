"""Runs an S3 server (moto) with one bucket, for tests. For a conditional put, moto checks first and writes then. This is atomic, as on S3,
only because moto answers one request at a time here."""

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def s3_bucket(*, through: Callable[[Any], Any] | None = None) -> Iterator[str]:
    """Yields the URL of a new bucket. Environment variables have the server's address, so child processes find the server too.

    The server is a WSGI application. `through` may wrap it; the wrapper may handle several requests at the same time.
    """
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    import s3fs
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            """Logs nothing. A log line for each request would be slow and fill the log."""

    moto, turn = create_backend_app("s3"), threading.Lock()

    def answer(environ, start_response):
        with turn:
            return moto(environ, start_response)

    application = through(answer) if through else answer
    server = make_server("127.0.0.1", 0, application, threaded=through is not None, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
            patched.setenv("AWS_ACCESS_KEY_ID", "test")
            patched.setenv("AWS_SECRET_ACCESS_KEY", "test")
            patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
            s3fs.S3FileSystem.clear_instance_cache()
            bucket = f"graphs-{secrets.token_hex(4)}"  # a new name: moto keeps buckets
            s3fs.S3FileSystem().mkdir(bucket)
            yield f"s3://{bucket}"
            s3fs.S3FileSystem.clear_instance_cache()
    finally:
        server.shutdown()
        thread.join(timeout=30)
