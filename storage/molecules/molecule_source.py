"""What an importer of molecules hands to ingestion: rows of SMILES with targets and split, in chunks of fixed size.

A chunk depends only on the source and the chunk size, so chunks may be featurised anywhere, in any order, more than once.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from graphmill.storage.format.graph_set_manifest import Reject

THREE_PARTS = ("train", "valid", "test")
HASHED = "sha256 of the SMILES, 80/10/10"  # says of a set, as its split, that nobody named one


@dataclass(frozen=True)
class MoleculeRows:
    """Some consecutive rows of a source. Those that it could not read are in `rejects`, not in the columns."""

    index: int  # number of the chunk
    row: np.ndarray  # int64 [c], from 0; rejected rows count
    line: np.ndarray  # int64 [c], in the source's file, from 1
    smiles: list[str]
    target: np.ndarray  # float32 [c, num_targets], NaN where there is none
    split: np.ndarray  # int8 [c]
    ids: pa.Array | None = None  # [c]: those of the source, where a column has them
    rejects: tuple[Reject, ...] = ()


@dataclass(frozen=True)
class MoleculeInfo:
    """What is known of a source before its rows are read."""

    name: str
    identity: str  # of content and options: sources with the same give the same chunks
    target_names: tuple[str, ...]
    split_names: tuple[str, ...]  # code c in `MoleculeRows.split` is names[c - 1]
    num_rows: int | None = None  # a hint
    provenance: Mapping[str, str] = field(default_factory=dict)
    id_kind: str | None = None  # "number" or "string": of `MoleculeRows.ids`
    columns: str = ""  # one line: what became of the source's columns, where it is a table


class MoleculeSource(Protocol):
    """Molecules as SMILES."""

    @property
    def info(self) -> MoleculeInfo: ...

    def chunks(self, rows: int) -> Iterator[MoleculeRows]:
        """All rows in order, `rows` of them in each chunk but the last. Raises DataError where the source cannot be read."""
        ...


def hashed_split(smiles: str) -> int:
    """Code in THREE_PARTS, 80/10/10: the first 8 bytes of SHA-256 of the SMILES, big-endian, over 2^64, below 0.8 or 0.9.

    The SMILES is hashed as it is written, without what follows the first space (a CXSMILES extension): equal texts meet in one part.
    """
    digest = hashlib.sha256(smiles.split(maxsplit=1)[0].encode() if smiles.strip() else b"").digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return 1 + (share >= 0.8) + (share >= 0.9)
