"""How every job ends: 0, one clear line and 1, 2 from the command line's parser, 130 after Ctrl-C."""

import sys
from collections.abc import Callable
from typing import NoReturn

from storage.errors import GraphmillError


def run(main: Callable[[], int | None]) -> NoReturn:
    """Calls `main` and exits with what it returns (None: 0).

    A GraphmillError is printed as one line, `error: …`, and exits with 1; Ctrl-C exits with 130. Any other exception is a defect and
    keeps its traceback.
    """
    try:
        code = main()
    except GraphmillError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(0 if code is None else code)
