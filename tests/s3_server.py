"""A bucket on an S3 server of the test's own, where moto answers one request at a time: it looks and then writes, so only then is
its conditional put exclusive, as S3's is."""

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def s3_bucket(*, through: Callable[[Any], Any] | None = None) -> Iterator[str]:
    """A new bucket's URL; the environment says where the server is, for child processes too.

    `through` may wrap the server, a WSGI application. The wrapper may handle several requests at the same time.
    """
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    import s3fs
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            """Does nothing: a line for each request would fill the log and slow the server down."""

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
            bucket = f"graphs-{secrets.token_hex(4)}"  # moto keeps its buckets until the process ends.
            s3fs.S3FileSystem().mkdir(bucket)
            yield f"s3://{bucket}"
            s3fs.S3FileSystem.clear_instance_cache()
    finally:
        server.shutdown()
        thread.join(timeout=30)
