"""Encrypts the connections between servers and clients with TLS. The certificates are those that Ray's TLS variables name on each host.

Both ends show a certificate that is signed by RAY_TLS_CA_CERT, as Ray's processes do. A server's certificate must name the address of the server.
"""

import os
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from graphmill.core.errors import ConfigError

_VARIABLES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_PIECE_BYTES = 1 << 16  # size of one send: each send has one deadline, and must end in time on a slow link too
_ADVICE = "see docs/guides/platform.md, or leave out --servers.tls"


class _Socket(ssl.SSLSocket):
    """An SSL socket whose sendmsg, recv and shutdown work as `graphmill.cluster.transport.connection.Connection` expects from a plain socket."""

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        piece = bytearray()
        for buffer in buffers:
            piece += buffer[: _PIECE_BYTES - len(piece)]
            if len(piece) == _PIECE_BYTES:
                break
        return self.send(piece)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Receives bytes. With flags it reads the encrypted bytes."""
        return socket.socket.recv(self, buflen, flags) if flags else super().recv(buflen)

    def shutdown(self, how: int) -> None:
        """Shuts down only the TCP socket, because another thread may read from the TLS layer."""
        socket.socket.shutdown(self, how)


def tls_context(*, is_server: bool) -> ssl.SSLContext:
    """Makes the TLS context of this side's sockets. Raises ConfigError naming a variable that is not set or whose file cannot be used."""
    paths = {name: os.environ.get(name, "") for name in _VARIABLES}
    for name, path in paths.items():
        if not Path(path).is_file():
            host, got = socket.gethostname(), f"{path}, which is no file" if path else "nothing"
            raise ConfigError(f"tls: expected {name} to name a PEM file on {host}, got {got}; {_ADVICE}")
    certificate, key, authority = paths.values()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = _Socket
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        # An empty password, because otherwise OpenSSL would ask for it at the terminal
        context.load_cert_chain(certificate, key, password="")
        context.load_verify_locations(authority)
    except OSError as error:
        listed = ", ".join(f"{name}={path}" for name, path in paths.items())
        raise ConfigError(
            f"tls: expected a certificate, its key without a password, and the CA's certificate in {listed}, got {error}; {_ADVICE}"
        ) from None
    return context
