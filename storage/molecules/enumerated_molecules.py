"""Generates molecules by rules, and computes their target with RDKit. This gives tests and first runs real chemistry without any file.

Each core is joined with two groups, in every combination. Molecules with the same canonical SMILES count once. The target is Crippen's logP (Wildman and
Crippen, J. Chem. Inf. Comput. Sci. 1999, 39, 868), a sum of contributions of atoms, which depend on an atom's surroundings.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphmill.core.errors import ConfigError, MissingDependencyError
from graphmill.storage.molecules.molecule_source import HASHED, THREE_PARTS, MoleculeInfo, MoleculeRows, hashed_split

# A group replaces {a} and {b}. Each follows an atom that can lose a hydrogen. Cores use the ring numbers 1 and 2, groups use 3.
_CORES = """
c1c{a}ccc{b}c1 c1c{a}cc{b}cc1 c1c{a}c{b}ccc1 c1{a}ncc{b}cc1 c1{a}cnc{b}nc1 c1{a}sc{b}cc1
c1{a}oc{b}cc1 c1{a}[nH]c{b}cc1 C1{a}CCC{b}CC1 C1{a}OCC{b}C1 N1{a}CCN{b}CC1 c1{a}ccc2cc{b}ccc2c1
c1{a}ccc2[nH]c{b}cc2c1 C{a}C=CC{b} C{a}C(=O)C{b} C{a}C(=O)NC{b}
"""
_GROUPS = """
(C) (CC) (C(C)C) (CO) (CN) (C#N) (C(=O)O) (C(=O)N) (C(F)(F)F) (CCl) (CCO) (COC) (CC=C) (C3CC3)
(c3ccccc3) (c3ccncc3) (CS) (C(=O)OC) (CC(C)(C)C)
"""  # the empty text stands for no group


@dataclass(frozen=True)
class EnumeratedMolecules:
    """A `MoleculeSource` of up to `count` molecules. Their order is shuffled in a fixed way, so the first `count` molecules are a fair sample."""

    count: int = 3000

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"count: expected at least 1, got {self.count}; set --count")

    @cached_property
    def _smiles(self) -> list[str]:
        chem, _ = _import_rdkit()
        groups = ("", *_GROUPS.split())
        written = (core.format(a=a, b=b) for core in _CORES.split() for a in groups for b in groups)
        distinct = {chem.CanonSmiles(each) for each in written}
        return sorted(distinct, key=lambda each: hashlib.sha256(b"order" + each.encode()).digest())[: self.count]

    @property
    def info(self) -> MoleculeInfo:
        digest = hashlib.sha256("\n".join(self._smiles).encode()).hexdigest()
        return MoleculeInfo(
            name="enumerated",
            identity=repr(("enumerated", digest)),
            target_names=("logp",),
            split_names=THREE_PARTS,
            num_rows=len(self._smiles),
            provenance={"source": "enumerated", "source_sha256": digest, "split": HASHED},
        )

    def chunks(self, rows: int) -> Iterator[MoleculeRows]:
        chem, crippen = _import_rdkit()
        for index, start in enumerate(range(0, len(self._smiles), rows)):
            smiles = self._smiles[start : start + rows]
            row = np.arange(start, start + len(smiles), dtype=np.int64)
            yield MoleculeRows(
                index=index,
                row=row,
                line=row + 1,
                smiles=smiles,
                target=np.array([[crippen(chem.MolFromSmiles(each))[0]] for each in smiles], np.float32),
                split=np.array([hashed_split(each) for each in smiles], np.int8),
            )


def _import_rdkit():
    try:
        from rdkit import Chem
        from rdkit.Chem.rdMolDescriptors import CalcCrippenDescriptors
    except ImportError as error:
        raise MissingDependencyError(f"molecules need rdkit: pip install -e '.[molecules]' ({error})") from error
    return Chem, CalcCrippenDescriptors
