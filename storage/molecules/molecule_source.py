"""Defines the interface between importers of molecules and ingestion. A source gives rows of SMILES with targets and split codes, in chunks of fixed size.

A chunk depends only on the source and the chunk size. So chunks may be featurised on any host, in any order, and more than once.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from graphmill.storage.format.graph_set_manifest import Reject

THREE_PARTS = ("train", "valid", "test")
HASHED = "sha256 of the SMILES, 80/10/10"  # stored name of the default split


@dataclass(frozen=True)
class MoleculeRows:
    """Consecutive rows of a source. Rows that could not be read are in `rejects` and not in the columns."""

    index: int  # number of the chunk
    row: np.ndarray  # int64 [c], row numbers from 0; rejected rows also have numbers
    line: np.ndarray  # int64 [c], line numbers in the source's file, from 1
    smiles: list[str]
    target: np.ndarray  # float32 [c, num_targets], NaN: missing
    split: np.ndarray  # int8 [c]
    ids: pa.Array | None = None  # [c]: the source's ids, if it has a column of ids
    rejects: tuple[Reject, ...] = ()


@dataclass(frozen=True)
class MoleculeInfo:
    """Properties of a source that are known before its rows are read."""

    name: str
    identity: str  # identifies content and options: sources with equal identity give equal chunks
    target_names: tuple[str, ...]
    split_names: tuple[str, ...]  # code c in `MoleculeRows.split` means split_names[c - 1]
    num_rows: int | None = None  # an estimate
    provenance: Mapping[str, str] = field(default_factory=dict)
    id_kind: str | None = None  # kind of `MoleculeRows.ids`: "number" or "string"
    columns: str = ""  # for a table: one line that describes the roles of its columns


class MoleculeSource(Protocol):
    """A source of molecules as SMILES."""

    @property
    def info(self) -> MoleculeInfo: ...

    def chunks(self, rows: int) -> Iterator[MoleculeRows]:
        """Yields all rows in order. Each chunk except the last has `rows` rows. Raises DataError if the source cannot be read."""
        ...


def hashed_split(smiles: str) -> int:
    """Returns the row's code in THREE_PARTS, split 80/10/10. Let x be the first 8 bytes of the SMILES' SHA-256, big-endian, divided by 2^64. Training has
    x < 0.8, and validation x < 0.9.

    The text of the SMILES is hashed, without a CXSMILES extension after the first space. So equal texts are in one part.
    """
    digest = hashlib.sha256(smiles.split(maxsplit=1)[0].encode() if smiles.strip() else b"").digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return 1 + (share >= 0.8) + (share >= 0.9)
