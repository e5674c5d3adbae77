"""Turns SMILES into graphs with OGB's features. The rows equal those of `ogb.utils.mol.smiles2graph`, and are computed about twice as fast.

OGB's functions `atom_to_feature_vector` and `bond_to_feature_vector` (ogb 1.3.6) compute a row once for each kind of atom or bond. Rows are cached under the
values that these functions read. A molecule that cannot become a graph is rejected with a reason.
"""

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


class Featuriser:
    """Turns chunks into graphs. Keeps a cache of feature rows from chunk to chunk. Not thread-safe.

    Raises MissingDependencyError if rdkit or ogb is not installed.
    """

    def __init__(self) -> None:
        self._chem, self._logs, features = _import_chemistry()
        self._atom_row, self._bond_row = features.atom_to_feature_vector, features.bond_to_feature_vector
        self._atom_rows: dict[tuple, bytes] = {}
        self._bond_rows: dict[tuple, bytes] = {}

    def featurise(self, rows: MoleculeRows) -> Molecules:
        """Returns the graphs of a chunk. Edges are in OGB's order: for one bond after another, both directions."""
        atoms, bonds = bytearray(), bytearray()
        ends: list[int] = []
        num_nodes, num_edges, kept, rejects = [], [], [], list(rows.rejects)
        with self._logs():  # RDKit must not print its refusals to stderr; the reject holds the reason
            for position, smiles in enumerate(rows.smiles):
                marks = len(atoms), len(bonds), len(ends)
                reason = self._append(smiles, atoms, bonds, ends)
                if reason is not None:
                    del atoms[marks[0] :], bonds[marks[1] :], ends[marks[2] :]
                    rejects.append(Reject(int(rows.line[position]), smiles, reason, int(rows.split[position])))
                    continue
                kept.append(position)
                num_nodes.append((len(atoms) - marks[0]) // ATOMS.dim)
                num_edges.append((len(ends) - marks[2]) // 2)
        graphs = PackedGraphs(
            num_nodes=np.array(num_nodes, np.int64),
            num_edges=np.array(num_edges, np.int64),
            edge_index=np.array(ends, np.int32).reshape(-1, 2).T,
            node_feature=np.frombuffer(atoms, np.uint8).reshape(-1, ATOMS.dim),
            edge_feature=np.frombuffer(bonds, np.uint8).reshape(-1, BONDS.dim),
            target=rows.target[kept] if rows.target.shape[1] else None,
        )
        rejects.sort(key=lambda reject: reject.line)
        ids = None if rows.ids is None else rows.ids.take(pa.array(kept, pa.int64()))
        return Molecules(graphs, rows.split[kept], rows.row[kept], tuple(rejects), ids)

    def _append(self, smiles: str, atoms: bytearray, bonds: bytearray, ends: list[int]) -> str | None:
        """Appends one molecule. If it must be rejected, returns the reason, and the caller removes the entries that were already appended."""
        molecule = self._chem.MolFromSmiles(smiles)
        if molecule is None:
            return self._refusal(smiles)
        num_atoms = molecule.GetNumAtoms()
        if not 0 < num_atoms <= _MAX_ATOMS:
            return "no atoms" if not num_atoms else f"{num_atoms} atoms, more than {_MAX_ATOMS}"
        # Chirality and stereo come only from these characters or from an extension |…|. Reading them from each atom and bond takes longer than all other reads.
        extended = "|" in smiles
        chiral, stereo = extended or "@" in smiles, extended or "/" in smiles or "\\" in smiles
        known, get = self._atom_rows, molecule.GetAtomWithIdx
        for index in range(num_atoms):
            atom = get(index)
            key = (
                atom.GetAtomicNum(),
                atom.GetTotalDegree(),
                atom.GetFormalCharge(),
                atom.GetTotalNumHs(),
                atom.GetNumRadicalElectrons(),
                atom.GetHybridization(),
                atom.GetIsAromatic(),
                atom.IsInRing(),
                atom.GetChiralTag() if chiral else 0,
            )
            row = known.get(key)
            if row is None:
                row = known[key] = bytes(self._atom_row(atom))
            atoms += row
        known, get = self._bond_rows, molecule.GetBondWithIdx
        for index in range(molecule.GetNumBonds()):
            bond = get(index)
            kind = (bond.GetBondType(), bond.GetIsConjugated(), bond.GetStereo() if stereo else 0)
            row = known.get(kind)
            if row is None:
                try:
                    row = known[kind] = bytes(2 * self._bond_row(bond))
                except ValueError:
                    return f"bond stereo {bond.GetStereo()}, which OGB's features do not have"
            bonds += row
            begin, end = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
            ends += (begin, end, end, begin)
        return None

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
