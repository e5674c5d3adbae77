"""Runs the benchmark of tables on a small table. It must have every reader, and both kinds of table must give one graph. Speeds are not checked."""

import json
import sys

import pytest

from benchmarks import tables
from benchmarks.tables import BenchTablesConfig, parsers, write_tables


def test_writes_its_tables(tmp_path, monkeypatch, capsys):
    words = ["tables", "--nodes", "50", "--edges", "4000", "--rounds", "1", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    tables.main()
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    readers = {(row["table"], row["reader"]): row for row in kept["rows"]}
    assert readers["csv", "ingestion"]["M edges per CPU s"] > 0
    assert readers["parquet", "pyarrow"]["ingestion / reader"] > 0
    assert {reader for kind, reader in readers if kind == "csv"} == {
        "ingestion",
        "pyarrow",
        "Polars",
        "compiled loop",
        "loop in C",
    }
    assert kept["content_hashes"]["csv"] == kept["content_hashes"]["parquet"]
    assert kept["fixed"]["command on 100 edges"] > kept["fixed"]["imports alone"] > 0
    assert "fixed cost beyond imports" in capsys.readouterr().out


def test_loops_read_all_lines(tmp_path):
    config = BenchTablesConfig(nodes=50, edges=400)
    path = write_tables(config, tmp_path)["big.csv"]
    readers = parsers(path, tmp_path)
    for name in ("compiled loop", "loop in C"):
        if (read := readers[name]) is not None:
            assert read() == 400, name


def test_a_parser_that_is_not_installed_has_no_value(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)  # an import then fails
    config = BenchTablesConfig(nodes=50, edges=400, rounds=1)
    rows, _ = tables.measure_rates(config, tmp_path)
    (missing,) = [row for row in rows if row["reader"] == "Polars" and row["table"] == "parquet"]
    assert missing["M edges per CPU s"] is None
    assert missing["note"] == "not installed"


def test_a_reader_of_too_few_edges_is_refused():
    with pytest.raises(tables.ConfigError, match="at least 400"):
        BenchTablesConfig(edges=399)
