"""What a user runs. Here: whether the flat packages beside it are ours."""

from importlib.util import find_spec
from pathlib import Path

# A folder `models` of the user's, before ours on the path, would end in a traceback of an import.
for _name in ("cluster", "models", "samplers", "storage"):
    _spec = find_spec(_name)
    _place = Path(_spec.origin or "").parent if _spec is not None else Path()
    if _place.resolve().parent != Path(__file__).resolve().parents[1]:
        raise SystemExit(
            f"error: {_name} is a package of Graphmill's own, another one lies at {_place}; give yours another name"
        )
