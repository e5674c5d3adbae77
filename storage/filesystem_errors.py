"""What filesystems raise, as one line: credentials, network, permissions, names that a store does not take.

fsspec's filesystems raise OSError, ValueError, or the errors of the package beneath them, which we do not import: botocore's
NoCredentialsError is no OSError. Those are known by the module of their class.
"""

import contextlib
from collections.abc import Iterator

from storage.errors import FormatError, GraphmillError

_CLIENT_PACKAGES = "botocore aiobotocore s3fs aiohttp gcsfs google azure adlfs requests urllib3 paramiko"


@contextlib.contextmanager
def one_line_errors(where: str, what: str, kind: type[GraphmillError] = FormatError) -> Iterator[None]:
    """Turns a filesystem's error inside the block into `kind`: "{where}: cannot {what}: …".

    For blocks of filesystem calls alone: a ValueError is taken for the filesystem's. Graphmill's own errors pass.
    """
    try:
        yield
    except GraphmillError:
        raise
    except Exception as error:
        if not _is_filesystem_error(error):
            raise
        raise kind(f"{where}: cannot {what}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The error's text without line breaks, or its class where it says nothing."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _is_filesystem_error(error: Exception) -> bool:
    return isinstance(error, OSError | ValueError | NotImplementedError) or any(
        each.__module__.split(".")[0] in _CLIENT_PACKAGES.split() for each in type(error).__mro__
    )
