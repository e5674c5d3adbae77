"""Random tables in every kind of file give the same graph as the tables that pandas reads from these files."""

import csv
import itertools
import lzma
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as pa_feather
import pyarrow.parquet as pa_parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.storage.importers.tables.edge_list import EdgeListGraph, EdgeListOptions

EXAMPLES = 2000 if settings.default.max_examples > 100 else 100
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": None}
WORDS = st.text("abcXYZ é,;'", min_size=1, max_size=4).filter(lambda text: text.strip() == text)
VALUES = {
    "float": st.one_of(st.none(), st.floats(-1e6, 1e6, width=32)),
    "int": st.one_of(st.none(), st.integers(-1000, 1000)),
    "text": st.one_of(st.none(), WORDS),
    "bool": st.booleans(),
}
LABELS = {"int": st.integers(0, 3), "text": WORDS, "real": st.floats(-9, 9, width=16).map(lambda x: x + 0.03125)}


@st.composite
def tables(draw):
    """Draws columns of nodes, ids, edges by position, a kind of file, a number of parts, and quoting."""
    count = draw(st.integers(1, 9))
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    columns = {
        f"c{i} {kind}": draw(st.lists(VALUES[kind], min_size=count, max_size=count)) for i, kind in enumerate(kinds)
    }
    label = draw(st.sampled_from(sorted(LABELS)))
    columns["label"] = draw(st.lists(st.one_of(st.none(), LABELS[label]), min_size=count, max_size=count))
    columns["split"] = draw(st.lists(st.sampled_from(["train", "valid", "test", None]), min_size=count, max_size=count))
    ids = draw(st.sampled_from(["rows", "numbers", "strings"]))
    keys = {
        "rows": range(count),
        "numbers": [7 * i + 3 for i in range(count)],
        "strings": [f"n{i} NA"[: 3 + i % 4] + str(i) for i in range(count)],
    }[ids]
    order = draw(st.permutations(range(count)))
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    frame.insert(draw(st.integers(0, len(frame.columns))), "node_id", list(keys))
    edges = draw(st.lists(st.tuples(st.sampled_from(keys), st.sampled_from(keys)), min_size=1, max_size=9))
    kind = draw(st.sampled_from([".csv", ".tsv", ".csv.gz", ".csv.bz2", ".csv.zst", ".csv.xz", ".parquet", ".feather"]))
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))
    return frame.iloc[list(order)], ids, edges, kind, draw(st.integers(1, 3)), quoting


def _typed(frame: pd.DataFrame) -> pa.Table:
    kinds = {"float": pa.float32(), "int": pa.int64(), "text": pa.string(), "bool": pa.bool_()}
    arrays = [pa.array(frame[name].tolist(), kinds.get(name.split()[-1])) for name in frame]
    return pa.table(arrays, names=list(frame))


def write(folder: Path, frame: pd.DataFrame, kind: str, parts: int, quoting: int) -> str:
    """Writes a folder of part files. pandas writes text, and Arrow writes the other kinds."""
    folder.mkdir()
    whole = None if kind.startswith((".csv", ".tsv")) else _typed(frame)
    ends = np.linspace(0, len(frame), parts + 1).astype(int)
    for part, (start, stop) in enumerate(itertools.pairwise(ends)):
        path = folder / f"part-{part}{kind}"
        if kind == ".parquet":
            pa_parquet.write_table(whole.slice(start, stop - start), path)
        elif kind == ".feather":
            pa_feather.write_feather(whole.slice(start, stop - start), str(path))
        else:
            text = frame[start:stop].to_csv(index=False, sep="\t" if ".tsv" in kind else ",", quoting=quoting).encode()
            codec = CODECS.get(kind[4:])
            path.write_bytes(lzma.compress(text) if kind.endswith("xz") else text)
            if codec:
                with pa.output_stream(str(path), compression=codec) as stream:
                    stream.write(text)
    return str(folder)


def read_back(folder: str, kind: str) -> pd.DataFrame:
    """Reads the files with pandas."""
    paths = sorted(Path(folder).iterdir())
    if kind == ".parquet":
        return pd.concat([pq.to_pandas() for pq in map(pa_parquet.read_table, paths)])
    if kind == ".feather":
        return pd.concat([pa_feather.read_table(str(path)).to_pandas() for path in paths])
    texts = [lzma.decompress(path.read_bytes()) if kind.endswith("xz") else path.read_bytes() for path in paths]
    for index, path in enumerate(paths):
        if CODECS.get(kind[4:]):
            with pa.input_stream(str(path), compression=CODECS[kind[4:]]) as stream:
                texts[index] = stream.read()
    joined = [
        pd.read_csv(pa.BufferReader(text), sep="\t" if ".tsv" in kind else ",", dtype=str, keep_default_na=False)
        for text in texts
    ]
    return pd.concat(joined)


def expected_features(frame: pd.DataFrame, train: np.ndarray, is_text: bool) -> np.ndarray:
    """Computes the features by the rules of the guide. A missing number becomes the mean, with 1 in a separate feature. Categories are sorted and one-hot."""
    columns = []
    for name in [each for each in frame if each[0] == "c" and each[1].isdigit()]:
        kind, values = name.split()[-1], frame[name]
        empty = values.isna() | (values.astype(str) == "")
        texts = values.astype(str)
        if kind == "text" and not (empty.all() and is_text):
            # in a text file, the kind of a column without values is not known
            known = sorted(set(texts[train & ~empty]))
            columns += [((texts == word) & ~empty).to_numpy(np.float32) for word in known]
            continue
        numbers = np.array(
            [
                np.nan if hole else {"True": 1.0, "False": 0.0}.get(text, text)
                for text, hole in zip(texts, empty, strict=True)
            ],
            float,
        ).astype(np.float32)
        mean = (
            np.float32(np.mean(numbers[train & ~empty], dtype=np.float64)) if (train & ~empty).any() else np.float32(0)
        )
        columns.append(np.where(empty, mean, numbers))
        if empty.any():
            columns.append(empty.to_numpy(np.float32))
    return np.stack(columns, axis=1).astype(np.float32) if columns else np.empty((len(frame), 0), np.float32)


@settings(max_examples=EXAMPLES, deadline=None)
@given(tables())
def test_tables_as_pandas_reads_them(table):
    frame, ids, edges, kind, parts, quoting = table
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = write(folder / "nodes", frame, kind, parts, quoting)
        pairs = pd.DataFrame(edges, columns=["source", "target"])
        edge_path = write(folder / "edges", pairs, kind, parts, quoting)
        read = read_back(path, kind)
        options = {"nodes": path, "node_header": True, "string_ids": ids == "strings" or None}
        graph = EdgeListGraph(edge_path, EdgeListOptions(**options))
        (nodes,) = graph.nodes(99)
        keys = [str(key) for key in read["node_id"]]
        got = nodes.string_id.to_pylist() if ids == "strings" else [str(each) for each in nodes.original_id]
        row = [keys.index(key) for key in got]
        splits = read["split"].fillna("").astype(str).to_numpy()
        np.testing.assert_array_equal(
            nodes.split[:, 0], [{"train": 1, "valid": 2, "test": 3}.get(split, 0) for split in splits[row]]
        )
        expected = expected_features(read.reset_index(drop=True), splits == "train", kind.startswith((".csv", ".tsv")))
        if expected.shape[1]:
            np.testing.assert_allclose(nodes.feature, expected[row], rtol=1e-6)
        labels = read["label"].to_numpy(object)[row]
        missing = np.array([label is None or label != label or str(label) == "" for label in labels])
        if graph.info.class_names:
            words = [
                -1 if hole else graph.info.class_names.index(label) for label, hole in zip(labels, missing, strict=True)
            ]
            np.testing.assert_array_equal(nodes.label, words)
            assert list(graph.info.class_names) == sorted(
                {label for label, hole in zip(labels, missing, strict=True) if not hole}
            )
        else:
            known = np.array([float(label) for label in labels[~missing]], np.float32)
            np.testing.assert_allclose(nodes.label[~missing].astype(np.float32), known)
            assert (
                np.isnan(nodes.label[missing]) if nodes.label.dtype.kind == "f" else nodes.label[missing] == -1
            ).all()
        found = [(got[u], got[v]) for chunk in graph.edges(99) for u, v in zip(chunk.src, chunk.dst, strict=True)]
        assert found == [(str(u), str(v)) for u, v in edges]
