"""Reads the JSON object in one of our files, whatever has happened to the file."""

import json
from typing import Any

from graphmill.core.errors import FormatError


def parse_object(text: str | bytes, where: str, advice: str = "repair the file or remove it") -> dict[str, Any]:
    """The object. Raises FormatError, with the file's name and the advice, for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # broken text, numbers of thousands of digits, or as many brackets
        raise FormatError(f"{where}: expected JSON, got broken text ({error}); {advice}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected an object, got {type(value).__name__}; {advice}")
    return value
