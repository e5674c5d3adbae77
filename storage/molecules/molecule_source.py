"""The interface between importers of molecules and ingestion: rows of SMILES with targets and split, in chunks of fixed size.

A chunk depends only on the source and the chunk size, so chunks may be featurised anywhere, in any order, and repeatedly.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from graphmill.storage.format.graph_set_manifest import Reject

THREE_PARTS = ("train", "valid", "test")
HASHED = "sha256 of the SMILES, 80/10/10"  # the stored name of the default split


@dataclass(frozen=True)
class MoleculeRows:
    """Consecutive rows of a source. Rows that could not be read are in `rejects`, not in the columns."""

    index: int  # number of the chunk
    row: np.ndarray  # int64 [c], from 0; rejected rows count
    line: np.ndarray  # int64 [c], in the source's file, from 1
    smiles: list[str]
    target: np.ndarray  # float32 [c, num_targets], NaN: missing
    split: np.ndarray  # int8 [c]
    ids: pa.Array | None = None  # [c]: the source's ids, if it has a column of ids
    rejects: tuple[Reject, ...] = ()


@dataclass(frozen=True)
class MoleculeInfo:
    """Properties of a source that are known before its rows are read."""

    name: str
    identity: str  # of content and options: sources of equal identity give equal chunks
    target_names: tuple[str, ...]
    split_names: tuple[str, ...]  # code c in `MoleculeRows.split` is names[c - 1]
    num_rows: int | None = None  # a hint
    provenance: Mapping[str, str] = field(default_factory=dict)
    id_kind: str | None = None  # kind of `MoleculeRows.ids`: "number" or "string"
    columns: str = ""  # for a table, one line about the roles of its columns


class MoleculeSource(Protocol):
    """Molecules as SMILES."""

    @property
    def info(self) -> MoleculeInfo: ...

    def chunks(self, rows: int) -> Iterator[MoleculeRows]:
        """All rows in order, `rows` in each chunk except the last. Raises DataError if the source cannot be read."""
        ...


def hashed_split(smiles: str) -> int:
    """Code in THREE_PARTS, 80/10/10: the first 8 bytes of SHA-256 of the SMILES, big-endian, over 2^64, below 0.8 or 0.9.

    The SMILES is hashed as it is written, up to the first space (before a CXSMILES extension), so equal texts are in one part.
    """
    digest = hashlib.sha256(smiles.split(maxsplit=1)[0].encode() if smiles.strip() else b"").digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return 1 + (share >= 0.8) + (share >= 0.9)
