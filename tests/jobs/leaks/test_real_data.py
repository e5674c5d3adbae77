"""Tests that `graphmill audit` raises no alarm on ten public data sets, or the alarm whose reason is written here."""

from pathlib import Path

import pytest

from graphmill.jobs import ingest
from graphmill.jobs.audit import audit
from tests.job_in_process import output_of

MOLHIV = "molecules/ogbg-molhiv_task.npz"
# Source, words of `graphmill ingest`, and the only finding. ZINC: the ten thousand training molecules are not among the files.
SETS = {
    "cora": ("nodes/planetoid_cora.npz", (), ""),
    "computers": ("nodes/amazon_cs.npz", (), ""),
    "photo": ("nodes/amazon_photo.npz", (), ""),
    "minesweeper": ("nodes/minesweeper.npz", (), ""),
    "tolokers": ("nodes/tolokers.npz", (), ""),
    "web-NotreDame": ("structure/web-NotreDame.txt.gz", ("--links.valid", "0.05", "--links.test", "0.1"), ""),
    "qm9": ("molecules/qm9_gap_union.csv.gz", ("--table.targets", "gap_eV"), ""),
    "molhiv": ("molecules/hiv.csv.gz", ("--table.targets", "HIV_active", "--table.split-file", MOLHIV), ""),
    "pcqm4mv2": ("molecules/pcqm4mv2-2k.csv.gz", ("--table.targets", "homo"), ""),
    "zinc": ("molecules/zinc_val_test_targets.csv.gz", ("--table.targets", "y_norm_sssr"), "split train has no graphs"),
}
QUICK = ("cora", "minesweeper")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in SETS])
def test_no_alarm(name: str, real_data: Path, tmp_path: Path) -> None:
    source, words, expected = SETS[name]
    if source.startswith("molecules"):
        pytest.importorskip("rdkit")
    where = f"{'smiles:' if source.startswith('molecules') else ''}{real_data / source}"
    output_of(ingest.main, where, tmp_path / "g", *(real_data / word if word == MOLHIV else word for word in words))
    result = audit(tmp_path / "g")
    findings = [finding.text for each in result.outcomes for finding in each.findings]
    assert findings == ([expected] if expected else []), result
