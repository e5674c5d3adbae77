"""Reads PCQM4Mv2 in the layout of `ogb.lsc.PCQM4Mv2Dataset`. Does not use this class, because it asks on stdin and unpickles files.

<root>/pcqm4m-v2/raw/data.csv.gz    idx, smiles, homolumogap (eV; empty for the two test parts): 3,746,620 rows
<root>/pcqm4m-v2/split_dict.pt      row numbers: train 3,378,606, valid 73,545, test-dev 147,037, test-challenge 147,432
"""

from pathlib import Path

import numpy as np

from graphmill.core.errors import DataError
from graphmill.storage.importers.files.pickle_reader import Refused, array, read_torch
from graphmill.storage.molecules.smiles import RowSplit, SmilesTable
from graphmill.storage.molecules.smiles_options import SmilesOptions

PARTS = ("train", "valid", "test-dev", "test-challenge")
_HOLDOUT_SEED = 42
_MOST_OPCODES = 10_000  # limit for the split's file; an array takes about forty opcodes
_URL = "https://dgl-data.s3-accelerate.amazonaws.com/dataset/OGB-LSC/pcqm4m-v2.zip"


def pcqm4mv2(root: str | Path, holdout: int = 0) -> SmilesTable:
    """Makes a source from the table with its official split. The table lies below `root`, or in `root` if this is the folder pcqm4m-v2.

    With `holdout`, this number of training molecules is drawn for validation, and the official validation part becomes "test". The molecules of the two test
    parts, whose targets are secret, are then in no part. The draw is the same as in GraphGPS's code (150,000 molecules), which GRIT and PPGT also use.

    Raises DataError for files that are missing (the message says what to put where) or have another layout. Nothing is downloaded.
    `RELEASE_v1.txt` is not needed, although `ogb` asks a question without it.
    """
    folder = _folder(root, "raw/data.csv.gz", "split_dict.pt")
    parts = read_split_dict(folder / "split_dict.pt")
    if holdout:
        if holdout >= len(parts["train"]):
            raise DataError(
                f"PCQM4Mv2: holdout: expected fewer than the {len(parts['train'])} training molecules, got {holdout}"
            )
        drawn = np.random.default_rng(_HOLDOUT_SEED).permutation(parts["train"])
        parts = {"train": drawn[holdout:], "valid": drawn[:holdout], "test": parts["valid"]}
    split = RowSplit.of(parts, str(folder / "split_dict.pt"))
    options = SmilesOptions(smiles="smiles", targets=("homolumogap",), id=None)  # the ids in the table are row numbers
    return SmilesTable(str(folder / "raw" / "data.csv.gz"), options, split, name="pcqm4mv2")


def official_split(root: str | Path) -> dict[str, np.ndarray]:
    """Reads the row numbers of the four parts. They are in the order that the leaderboard expects. Raises DataError like `pcqm4mv2`."""
    return read_split_dict(_folder(root, "split_dict.pt") / "split_dict.pt")


def _folder(root: str | Path, *files: str) -> Path:
    folder = Path(root) if (Path(root) / "raw").is_dir() else Path(root) / "pcqm4m-v2"
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise DataError(
            f"PCQM4Mv2: {' and '.join(missing)} missing at {folder}; unpack {_URL} and put its folder pcqm4m-v2 there"
        )
    return folder


def read_split_dict(path: Path) -> dict[str, np.ndarray]:
    """Reads the row numbers of the four parts from a file, without unpickling it. Raises DataError for a file with other content."""
    content = read_torch(path, _MOST_OPCODES)
    if not isinstance(content, dict) or not set(PARTS) <= set(content):
        names = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{path}: expected the parts {', '.join(PARTS)}, found {names[:200]}")
    parts = {}
    for name in PARTS:
        try:
            rows = np.asarray(array(content[name]))
        except Refused as error:
            raise DataError(f"{path}: part {name}: {error}") from None
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise DataError(
                f"{path}: part {name}: expected row numbers, found {rows.dtype} of shape {list(rows.shape)}"
            )
        parts[name] = rows
    return parts
