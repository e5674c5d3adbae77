"""The benchmark of safety checks runs on real workers. All its training loops use the same batches."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import checks as bench_checks
from benchmarks.checks import LOOPS, Config, Share, describe

SMALL = "--data.nodes 600 --width 8 --layers 1 --chunks 4 --epochs 2 --dropout 0"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_both_loops_train_on_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    out = tmp_path / "out"
    arguments = [*SMALL.split(), "--data.folder", str(tmp_path / "data"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["bench_checks.py", *arguments])
    bench_checks.main()
    shares = json.loads((out / "results.json").read_text())["shares"]
    assert len(shares) == 2
    for share in shares:
        assert {len(values) for values in (*share["wall_s"].values(), *share["cpu_s"].values())} == {2}
        assert len(share["stall_s"]) == 2
        assert share["losses"]["saving"] == share["losses"]["checked"]
        assert share["losses"]["control"] == share["losses"]["bare"]
        # All loops begin with the same batches and weights. The bare loop gives each rank the same weight, even if ranks
        # have different numbers of targets.
        assert share["losses"]["bare"] == pytest.approx(share["losses"]["checked"], rel=2e-3)
        assert share["moved"]["bare"] == pytest.approx(share["moved"]["checked"], rel=0.1)
        assert share["moved"]["bare"] > 0.01
    text = (out / "results.md").read_text()
    assert capsys.readouterr().out.endswith(text)


def test_the_table_shows_the_median_of_the_epochs_own_ratios() -> None:
    one = {"checked": [2.0, 3.3, 8.0], "saving": [2.0, 3.6, 9.0], "bare": [2.0, 3.0, 2.0], "control": [2.0, 3.0, 2.0]}
    losses = {name: [3.0, 2.5] for name in LOOPS}
    share = Share(one, one, losses, [0.1, 0.6], dict.fromkeys(LOOPS, 0.5))
    text = describe(Config(), [share, replace(share, stall_s=[0.3, 0.2])])
    assert "| seconds | 3.300 | 3.600 | 2.000 | 2.000 |" in text
    assert "| to bare (quartiles) | 1.100 (1.000 to 4.000) | 1.200 (1.000 to 4.500) | 1.000 (1.000 to 1.000) |" in text
    assert "stops training for 450.0 ms (median of 2; longest 600.0 ms): 0.75% of the time at one a minute" in text
    assert "takes 300.0 ms more (median): 0.50%" in text
