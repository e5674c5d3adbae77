"""Turns errors of filesystems into one line, for example errors of credentials, network, permissions, or names that a store refuses.

fsspec's filesystems raise OSError, ValueError, or errors of the package that they use. For example, botocore's NoCredentialsError is not an OSError.
Graphmill does not import these packages, so it recognizes their errors by the module of the error's class.
"""

import errno
from types import TracebackType

from graphmill.core.errors import FormatError, GraphmillError

_CLIENT_PACKAGES = "botocore aiobotocore s3fs aiohttp gcsfs google azure adlfs requests urllib3 paramiko"

_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
# s3fs raises EINVAL if S3 refuses a request.
_FINAL_NUMBERS = (errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.EMSGSIZE, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_CONNECTION_ERRORS = ("HTTPClientError", "ConnectionError", "ClientError", "RequestException", "HttpError")


class one_line_errors:
    """A context that turns an error of a filesystem into an error of class `kind` with the text "{where}: cannot {action}: …".

    The block must only call a filesystem, because every ValueError is treated as an error of the filesystem. Errors of Graphmill pass unchanged.
    It is a class, because a context manager that is made from a generator takes three times as long to enter, and opening a graph enters several contexts.
    """

    def __init__(self, where: str, action: str, kind: type[GraphmillError] = FormatError) -> None:
        self._where, self._action, self._kind = where, action, kind

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, GraphmillError) and _is_filesystem_error(error):
            raise self._kind(f"{self._where}: cannot {self._action}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Returns the error's text without line breaks, or the name of the error's class if the text is empty."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later: True for a network error or a busy store, False for a missing name or a missing permission."""
    if isinstance(error, OSError):
        return not isinstance(error, _FINAL) and error.errno not in _FINAL_NUMBERS
    return any(each.__name__ in _CONNECTION_ERRORS for each in type(error).__mro__)


def _is_filesystem_error(error: Exception) -> bool:
    return isinstance(error, OSError | ValueError | NotImplementedError) or any(
        each.__module__.split(".")[0] in _CLIENT_PACKAGES.split() for each in type(error).__mro__
    )
