"""Reads the JSON object in a file of Graphmill; a damaged file raises one kind of error."""

import json
from typing import Any

from graphmill.core.errors import FormatError


def parse_object(text: str | bytes, where: str, advice: str = "repair the file or remove it") -> dict[str, Any]:
    """Returns the object. Raises FormatError, with the file's name and the advice, if the text is not a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, or very long numbers or deep nesting
        raise FormatError(f"{where}: expected JSON, got broken text ({error}); {advice}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected an object, got {type(value).__name__}; {advice}")
    return value
