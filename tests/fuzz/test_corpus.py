"""Runs every target on its valid first input and on all inputs that fuzzing has kept."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, read_or_refused

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", list(TARGETS))
def test_kept_inputs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    seeds, run = TARGETS[name].prepare(tmp_path)
    for seed in seeds:
        assert read_or_refused(run, seed), "what was valid is refused"
    for path in sorted((CORPUS / name).glob("*")):
        read_or_refused(run, path.read_bytes())
    for seed in seeds:
        assert not read_or_refused(run, seed[: len(seed) // 2] if len(seed) > 60 else b"\xff\xfe")
