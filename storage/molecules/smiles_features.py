"""From SMILES to graphs with OGB's features: equal to `ogb.utils.mol.smiles2graph`, row by row, at several times its rate.

OGB's functions `atom_to_feature_vector` and `bond_to_feature_vector` (ogb 1.3.6) compute each row once per kind of atom or bond. A kind is the values that
these functions read. RDKit gives the values of a whole molecule at once in its binary form, and one atom or bond of each kind is compared with it. A molecule that cannot become a graph is rejected with a reason.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa

from graphmill.core.errors import MissingDependencyError
from graphmill.storage.format.graph_set_manifest import Reject, RowSchema
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from graphmill.storage.molecules.molecule_source import MoleculeRows
from graphmill.storage.molecules.ogb_import import import_ogb

# Sizes of the vocabularies in ogb.utils.features.allowable_features, in the order of columns (get_atom_feature_dims, get_bond_feature_dims).
ATOMS = RowSchema(9, "uint8", (119, 5, 12, 12, 10, 6, 6, 2, 2))
BONDS = RowSchema(3, "uint8", (5, 6, 2))
INDEX_DTYPE = "uint16"
_MAX_ATOMS = 2**16 - 1


@dataclass(frozen=True)
class Molecules:
    """The graphs of one chunk, and its rejected rows, in the order of their lines."""

    graphs: PackedGraphs
    split: np.ndarray  # int8 [g]
    original_id: np.ndarray  # int64 [g]
    rejects: tuple[Reject, ...]
    ids: pa.Array | None = None  # [g]


@dataclass(frozen=True)
class _Kinds:
    """The kinds (`binary_kernels`) of the atoms and bonds of several molecules, one molecule after another."""

    num_atoms: np.ndarray  # int64 [m]
    num_bonds: np.ndarray  # int64 [m]
    atoms: np.ndarray  # int64 [sum(num_atoms)]
    bonds: np.ndarray  # int64 [sum(num_bonds)]
    ends: np.ndarray  # int32 [sum(num_bonds), 2]

    @classmethod
    def read(cls, binaries: list[bytes], sizes: list[tuple[int, int]], molecule: Callable[[int], Any]) -> "_Kinds":
        """Reads the binary forms of molecules. `sizes`: their numbers of atoms and bonds. `molecule`: makes a molecule again, if its form is another one."""
        from graphmill.storage.molecules.binary_kernels import read_molecules

        num_atoms, num_bonds = np.array(sizes, np.int64).reshape(-1, 2).T.copy()
        starts, is_read = np.cumsum([0, *map(len, binaries)]), np.zeros(len(binaries), bool)
        atoms, bonds = np.empty(num_atoms.sum(), np.int64), np.empty(num_bonds.sum(), np.int64)
        kinds = cls(num_atoms, num_bonds, atoms, bonds, np.empty((len(bonds), 2), np.int32))
        text = np.frombuffer(b"".join(binaries), np.uint8)
        read_molecules(text, starts, num_atoms, num_bonds, atoms, bonds, kinds.ends, is_read)
        for index in np.flatnonzero(~is_read).tolist():
            kinds.ask(index, molecule(index))
        return kinds

    def ask(self, index: int, molecule: Any) -> None:
        """Sets the kinds of a molecule from the properties of its atoms and bonds. Ten times as slow as `read`."""
        first_atom, first_bond = self.num_atoms[:index].sum(), self.num_bonds[:index].sum()
        for place, atom in enumerate(molecule.GetAtoms(), first_atom):
            self.atoms[place] = _atom_kind(atom)
        for place, bond in enumerate(molecule.GetBonds(), first_bond):
            self.bonds[place] = _bond_kind(bond)
            self.ends[place] = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()

    def without(self, refused: np.ndarray) -> "_Kinds":
        """The kinds without these molecules (bool [m])."""
        kept, atom, bond = ~refused, *(~np.repeat(refused, counts) for counts in (self.num_atoms, self.num_bonds))
        return _Kinds(self.num_atoms[kept], self.num_bonds[kept], self.atoms[atom], self.bonds[bond], self.ends[bond])


class _Misread(Exception):
    """The properties of an atom or bond differ from its kind."""


class Featuriser:
    """Turns chunks into graphs. Keeps a cache of feature rows from chunk to chunk. Not thread-safe.

    Raises MissingDependencyError if rdkit or ogb is not installed.
    """

    def __init__(self) -> None:
        self._chem, self._logs, features = _import_chemistry()
        self._atom_row, self._bond_row = features.atom_to_feature_vector, features.bond_to_feature_vector
        self._atom_rows: dict[int, bytes] = {}
        self._bond_rows: dict[int, bytes] = {}
        self._bond_refusals: dict[int, str] = {}

    def featurise(self, rows: MoleculeRows) -> Molecules:
        """The graphs of a chunk, edges in OGB's order: bond after bond, each in both directions."""
        positions, reasons, binaries, sizes = list[int](), dict[int, str](), list[bytes](), list[tuple[int, int]]()
        with self._logs():  # keeps RDKit's refusals from stderr; their reason goes into the reject
            for position, smiles in enumerate(rows.smiles):
                molecule = self._chem.MolFromSmiles(smiles)
                if molecule is None:
                    reasons[position] = self._refusal(smiles)
                elif not 0 < (num_atoms := molecule.GetNumAtoms()) <= _MAX_ATOMS:
                    reasons[position] = f"{num_atoms} atoms, more than {_MAX_ATOMS}" if num_atoms else "no atoms"
                else:
                    positions.append(position)
                    binaries.append(molecule.ToBinary(0))
                    sizes.append((num_atoms, molecule.GetNumBonds()))

            def molecule_at(index: int) -> Any:
                return self._chem.MolFromSmiles(rows.smiles[positions[index]])

            kinds = _Kinds.read(binaries, sizes, molecule_at)
            try:
                self._learn(kinds, molecule_at)
            except _Misread:
                for index in range(len(positions)):
                    kinds.ask(index, molecule_at(index))
                self._learn(kinds, molecule_at)
        refused = np.zeros(len(positions), bool)
        if self._bond_refusals:
            bad = np.flatnonzero(np.isin(kinds.bonds, list(self._bond_refusals)))
            owners, first = np.unique(np.repeat(np.arange(len(positions)), kinds.num_bonds)[bad], return_index=True)
            refused[owners] = True
            for owner, bond in zip(owners.tolist(), kinds.bonds[bad[first]].tolist(), strict=True):
                reasons[positions[owner]] = self._bond_refusals[bond]
            kinds = kinds.without(refused)
        kept = np.array(positions, np.int64)[~refused]
        graphs = PackedGraphs(
            num_nodes=kinds.num_atoms,
            num_edges=2 * kinds.num_bonds,
            edge_index=kinds.ends[:, [0, 1, 1, 0]].reshape(-1, 2).T,
            node_feature=_feature_rows(kinds.atoms, self._atom_rows, ATOMS.dim),
            edge_feature=np.repeat(_feature_rows(kinds.bonds, self._bond_rows, BONDS.dim), 2, axis=0),
            target=rows.target[kept] if rows.target.shape[1] else None,
        )
        rejects = [
            Reject(int(rows.line[position]), rows.smiles[position], reason, int(rows.split[position]))
            for position, reason in reasons.items()
        ]
        all_rejects = sorted([*rows.rejects, *rejects], key=lambda reject: reject.line)
        ids = None if rows.ids is None else rows.ids.take(pa.array(kept, pa.int64()))
        return Molecules(graphs, rows.split[kept], rows.row[kept], tuple(all_rejects), ids)

    def _learn(self, kinds: _Kinds, molecule_at: Callable[[int], Any]) -> None:
        """Computes the feature rows of new kinds, from one atom or bond of each. Raises _Misread if it is of another kind."""
        for kind, owner, index in _first_of_each(kinds.atoms, kinds.num_atoms, self._atom_rows.keys()):
            atom = molecule_at(owner).GetAtomWithIdx(index)
            if _atom_kind(atom) != kind:
                raise _Misread
            self._atom_rows[kind] = bytes(self._atom_row(atom))
        known = self._bond_rows.keys() | self._bond_refusals.keys()
        for kind, owner, index in _first_of_each(kinds.bonds, kinds.num_bonds, known):
            molecule = molecule_at(owner)
            bond = molecule.GetBondWithIdx(index)
            if _bond_kind(bond) != kind:
                raise _Misread
            try:
                self._bond_rows[kind] = bytes(self._bond_row(bond))
            except ValueError:
                self._bond_refusals[kind] = f"bond stereo {bond.GetStereo()}, which OGB's features do not have"

    def _refusal(self, smiles: str) -> str:
        """Returns the reason why RDKit refuses this text."""
        molecule = self._chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is None:
            return "not SMILES"
        try:
            self._chem.SanitizeMol(molecule)
        except ValueError as error:  # MolSanitizeException
            return " ".join(str(error).split())
        return "RDKit cannot read it"


def _atom_kind(atom: Any) -> int:
    from graphmill.storage.molecules.binary_kernels import atom_kind

    return atom_kind.py_func(
        atom.GetAtomicNum(),
        min(atom.GetTotalDegree(), 255),
        atom.GetFormalCharge(),
        atom.GetTotalNumHs(),
        atom.GetNumRadicalElectrons(),
        int(atom.GetHybridization()),
        int(atom.GetChiralTag()),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
    )


def _bond_kind(bond: Any) -> int:
    from graphmill.storage.molecules.binary_kernels import bond_kind

    return bond_kind.py_func(int(bond.GetBondType()), int(bond.GetStereo()), int(bond.GetIsConjugated()))


def _first_of_each(kinds: np.ndarray, counts: np.ndarray, known: Set[int]) -> Iterator[tuple[int, int, int]]:
    """(kind, molecule, index in the molecule) of the first atom or bond of each kind that is not in `known`."""
    distinct, first = np.unique(kinds, return_index=True)
    starts = np.cumsum(counts) - counts
    for kind, place in zip(distinct.tolist(), first.tolist(), strict=True):
        if kind not in known:
            owner = int(np.searchsorted(starts + counts, place, side="right"))
            yield kind, owner, int(place - starts[owner])


def _feature_rows(kinds: np.ndarray, rows: dict[int, bytes], dim: int) -> np.ndarray:
    """uint8 [len(kinds), dim]: the row of each kind."""
    distinct, places = np.unique(kinds, return_inverse=True)
    table = np.frombuffer(b"".join(rows[kind] for kind in distinct.tolist()), np.uint8).reshape(-1, dim)
    return table[places]


def murcko_scaffold(smiles: str) -> str:
    """Returns RDKit's SMILES of the Murcko scaffold, without chirality; "" for a molecule without rings or an invalid SMILES. Raises MissingDependencyError."""
    chem, logs, _ = _import_chemistry()
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    with logs():
        molecule = chem.MolFromSmiles(smiles)
        return "" if molecule is None else MurckoScaffoldSmiles(mol=molecule)


def chemistry_versions() -> dict[str, str]:
    """Returns the versions of rdkit and ogb, for a graph's provenance. Raises MissingDependencyError if one is not installed."""
    try:
        return {"rdkit": metadata.version("rdkit"), "ogb": metadata.version("ogb")}
    except metadata.PackageNotFoundError as error:
        raise _missing(error) from error


def _import_chemistry() -> tuple[Any, Any, Any]:
    """Imports and returns rdkit.Chem, rdkit.rdBase.BlockLogs and ogb.utils.features."""
    try:
        features = import_ogb("ogb.utils.features")
        from rdkit import Chem
        from rdkit.rdBase import BlockLogs
    except ImportError as error:
        raise _missing(error) from error
    return Chem, BlockLogs, features


def _missing(error: ImportError) -> MissingDependencyError:
    return MissingDependencyError(f"molecules need rdkit and ogb: pip install -e '.[molecules]' ({error})")
