"""PCQM4Mv2 in the layout of `ogb.lsc.PCQM4Mv2Dataset`, read without that class, which asks on stdin and unpickles.

<root>/pcqm4m-v2/raw/data.csv.gz    idx, smiles, homolumogap (eV; empty for the two test parts): 3,746,620 rows
<root>/pcqm4m-v2/split_dict.pt      row numbers: train 3,378,606, valid 73,545, test-dev 147,037, test-challenge 147,432
"""

import _codecs
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct

from storage.errors import DataError
from storage.filesystem_errors import one_line
from storage.importers.smiles import RowSplit, SmilesTable
from storage.importers.smiles_options import SmilesOptions

PARTS = ("train", "valid", "test-dev", "test-challenge")
_URL = "https://dgl-data.s3-accelerate.amazonaws.com/dataset/OGB-LSC/pcqm4m-v2.zip"


def pcqm4mv2(root: str | Path) -> SmilesTable:
    """The table below `root` (or `root` itself, where it is the folder pcqm4m-v2), with its official split.

    Raises DataError for files that are not there (the line says what to put where) or not of this layout. Nothing is downloaded,
    and `RELEASE_v1.txt`, without which `ogb` would ask, is not needed.
    """
    folder = Path(root) if (Path(root) / "raw").is_dir() else Path(root) / "pcqm4m-v2"
    missing = [name for name in ("raw/data.csv.gz", "split_dict.pt") if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"PCQM4Mv2: {' and '.join(missing)} missing at {folder}; unpack {_URL} and put its folder pcqm4m-v2 there"
        )
    split = RowSplit.of(read_split_dict(folder / "split_dict.pt"), str(folder / "split_dict.pt"))
    options = SmilesOptions(smiles="smiles", targets=("homolumogap",))
    return SmilesTable(str(folder / "raw" / "data.csv.gz"), options, split, name="pcqm4mv2")


def read_split_dict(path: Path) -> dict[str, np.ndarray]:
    """Row numbers of the four parts. Raises DataError for a file that holds anything else.

    The file is a pickle, inside torch's zip file or (before torch 1.6) after three others. It is read by an unpickler that knows the
    names of numpy's arrays and no others, and refuses a file with another name before anything is called. (torch's own restricted
    reader, `weights_only`, does not read pickles of protocol 4.)
    """
    try:
        content = _read_pickled(path)
    except (pickle.UnpicklingError, zipfile.BadZipFile, *_BROKEN) as error:
        raise DataError(f"{path}: expected a dictionary of arrays: {one_line(error)[:200]}") from error
    if not isinstance(content, dict) or not set(PARTS) <= set(content):
        found = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{path}: expected the parts {', '.join(PARTS)}, found {found[:200]}")
    return {name: np.asarray(content[name]) for name in PARTS}


def _read_pickled(path: Path) -> object:
    with open(path, "rb") as stream:
        if not zipfile.is_zipfile(stream):
            stream.seek(0)
            for _ in range(3):  # magic number, version, sizes of this system's integers
                _ArrayUnpickler(stream).load()
            return _ArrayUnpickler(stream).load()
        with zipfile.ZipFile(stream) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise pickle.UnpicklingError(f"expected one data.pkl in the zip file, found {len(names)}")
            return _ArrayUnpickler(io.BytesIO(archive.read(names[0]))).load()


# What a pickle that is cut or forged makes the unpickler, or numpy, raise.
_BROKEN = (ValueError, TypeError, AttributeError, EOFError, OSError, LookupError, MemoryError, NotImplementedError)
# Functions of numpy by the names of numpy 1 and numpy 2; `encode` turns text into the bytes of an array.
_ALLOWED = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype, ("_codecs", "encode"): _codecs.encode}
_ALLOWED |= {(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"found {module}.{name}, which is no part of an array; nothing was called")
        return _ALLOWED[module, name]
