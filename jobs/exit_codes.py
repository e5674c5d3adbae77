"""How a job ends."""

import sys
from collections.abc import Callable
from typing import NoReturn

from storage.errors import GraphmillError


def run(main: Callable[[], int | None]) -> NoReturn:
    """Runs a job's main: one clear line for our errors."""
    try:
        sys.exit(main())
    except GraphmillError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
