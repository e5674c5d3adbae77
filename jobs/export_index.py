"""Makes a nearest-neighbor index of predicted embeddings, for retrieval: `python jobs/export_index.py PREDICTIONS OUT`.

    python jobs/predict.py runs/links runs/links/states --embeddings
    python jobs/export_index.py runs/links/states runs/links/index --metric cosine

Needs faiss (`pip install -e '.[retrieval]'`). OUT gets `index.faiss`, which `faiss.read_index` opens anywhere, and `ids.parquet`, whose row i has the id of the
index's vector i. The memory holds the vectors and, for an HNSW index, a list of 8 · links bytes for each vector. You should see the number of vectors and the
share of the true nearest neighbors that the index finds, measured on a sample. If there are no embeddings, the command prints one line, exits with 1 and does
not write OUT.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphmill.core.errors import ConfigError, DataError, MissingDependencyError
from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.storage.filesystem.filesystem_errors import one_line_errors

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

INDEX, IDS = "index.faiss", "ids.parquet"
_ROWS = 1 << 16  # rows read at a time
_CHECKED, _NEAREST = 200, 10  # vectors in the sample, and neighbors of each


@dataclass(frozen=True)
class IndexConfig:
    """Make an index of embeddings."""

    predictions: Path
    """A folder that `predict --embeddings` wrote."""
    out: Path
    """The folder to write; it must be absent or empty."""
    metric: Literal["dot", "cosine", "l2"] = "dot"
    """Measure of nearness. dot: the scalar product, with which the decoder dot scores links. cosine: the cosine; vectors are stored with length 1, so scale
    queries to length 1 as well. l2: the distance, with which the decoder transe scores links."""
    kind: Literal["hnsw", "flat"] = "hnsw"
    """hnsw: a graph of near vectors (arXiv:1603.09320); a search takes logarithmic time and misses some neighbors. flat: a search compares all vectors."""
    links: int = 32
    """hnsw: number of links of each vector."""
    search: Count = 64
    """hnsw: number of candidates in a search. With more candidates a search misses fewer neighbors and takes longer."""

    def __post_init__(self) -> None:
        check_fields(self, links=2)


def main() -> None:
    config = parse(IndexConfig, __doc__, ("predictions", "out"))
    faiss = _faiss()
    from graphmill.storage.filesystem.object_stores import list_names
    from graphmill.storage.filesystem.outputs import check_output

    check_output(config.out, "an index", list_names)  # refuses a folder that holds files
    index = None
    ids: list[pa.ChunkedArray] = []
    for table in _rows(config.predictions):
        vectors = _vectors(table, config)
        if index is None:
            index = _new_index(faiss, vectors.shape[1], config)
        if vectors.shape[1] != index.d or (ids and table["id"].type != ids[0].type):
            raise DataError(
                f"{config.predictions}: expected ids of one type and vectors of one width, got {table['id'].type} and {vectors.shape[1]} after others; "
                "give the folder of one prediction"
            )
        index.add(vectors)
        ids.append(table["id"])
    if index is None:
        raise DataError(f"{config.predictions}: expected predictions, found none; give the folder that predict wrote")
    with one_line_errors(str(config.out), "write the index", ConfigError):
        _write(faiss, index, ids, config.out)
    print(f"{index.ntotal:,} vectors of {index.d} at {config.out / INDEX}, their ids in {IDS}")
    if config.kind == "hnsw":
        count, share = _share_found(faiss, index)
        print(f"of {count} true nearest neighbors of some vectors it finds {share:.0%}; more with a larger --search")


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError(f"an index needs faiss: pip install -e '.[retrieval]' ({error})") from error
    return faiss


def _rows(folder: Path) -> Iterator["pa.Table"]:
    """The ids and embeddings, in order. Raises DataError if there are none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in sorted(folder.glob("part-*.parquet")):
        with one_line_errors(str(path), "read it", DataError):
            file = pq.ParquetFile(path)
            if "embedding" not in file.schema_arrow.names:
                raise DataError(f"{folder}: expected embeddings, found none; predict with --embeddings")
            for batch in file.iter_batches(_ROWS, columns=["id", "embedding"]):
                yield pa.Table.from_batches([batch])


def _vectors(table: "pa.Table", config: IndexConfig) -> "np.ndarray":
    """float32 [n, width]"""
    import numpy as np
    import pyarrow.compute as pc

    column = table["embedding"].combine_chunks()
    lengths = pc.list_value_length(column)
    width = lengths[0].as_py() if len(column) else None
    flat = np.asarray(column.flatten().fill_null(float("nan")), np.float32) if width else np.empty(0, np.float32)
    if not width or not pc.all(pc.equal(lengths, width), skip_nulls=False).as_py() or not np.isfinite(flat).all():
        raise DataError(
            f"{config.predictions}: expected as many finite numbers in each embedding, got others; predict again"
        )
    vectors = flat.reshape(len(column), -1)
    if config.metric == "cosine":
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return np.ascontiguousarray(vectors)


def _new_index(faiss: Any, width: int, config: IndexConfig) -> Any:
    metric = faiss.METRIC_L2 if config.metric == "l2" else faiss.METRIC_INNER_PRODUCT
    if config.kind == "flat":
        return faiss.IndexFlat(width, metric)
    index = faiss.IndexHNSWFlat(width, config.links, metric)
    index.hnsw.efSearch = config.search
    return index


def _share_found(faiss: Any, index: Any) -> tuple[int, float]:
    """(number of true nearest neighbors for each vector of a sample, share of them that the index finds). Neighbors at the same distance count as equal."""
    import numpy as np

    stored = faiss.downcast_index(index.storage)
    rows = np.arange(0, index.ntotal, max(1, index.ntotal // _CHECKED))[:_CHECKED]
    sample = np.stack([stored.reconstruct(int(row)) for row in rows])
    count = min(_NEAREST, index.ntotal)
    nearest, by_index = (searched.search(sample, count)[0] for searched in (stored, index))
    is_as_near = np.isclose(nearest, by_index, rtol=1e-5, atol=1e-6)
    return count, float(is_as_near.mean())


def _write(faiss: Any, index: Any, ids: list["pa.ChunkedArray"], out: Path) -> None:
    """Writes both files, or neither."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from graphmill.storage.filesystem.outputs import whole_folder

    with whole_folder(out) as made:
        faiss.write_index(index, str(made / INDEX))
        column = pa.chunked_array([chunk for columns in ids for chunk in columns.chunks])
        pq.write_table(pa.table({"id": column}), made / IDS)


if __name__ == "__main__":
    run(main)
