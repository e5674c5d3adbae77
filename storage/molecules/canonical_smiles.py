"""Canonical SMILES of stored molecules, rebuilt from OGB's features. Two rows of the source have the same canonical SMILES if they are the same molecule,
however their SMILES are written. Needs RDKit."""

from typing import Any

import numpy as np

from graphmill.core.errors import MissingDependencyError
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs

# Columns of OGB's features (ogb.utils.features.allowable_features): element, chirality, charge, hydrogens, radicals; kind and stereo of a bond.
_ELEMENT, _CHIRALITY, _CHARGE, _HYDROGENS, _RADICALS = 0, 1, 3, 4, 5
_CHARGE_OF_0, _MISC_ELEMENT = 5, 118


def canonical_smiles(graphs: PackedGraphs) -> list[str]:
    """The canonical SMILES of each molecule, with its handedness. Bonds must be in OGB's order: one after another, each in both directions.

    Raises MissingDependencyError if RDKit is not installed.
    """
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        raise MissingDependencyError("canonical SMILES need RDKit: pip install 'graphmill[molecules]'") from None
    tags = (
        Chem.ChiralType.CHI_UNSPECIFIED,
        Chem.ChiralType.CHI_TETRAHEDRAL_CW,
        Chem.ChiralType.CHI_TETRAHEDRAL_CCW,
        Chem.ChiralType.CHI_OTHER,
    )
    kinds = (
        Chem.BondType.SINGLE,
        Chem.BondType.DOUBLE,
        Chem.BondType.TRIPLE,
        Chem.BondType.AROMATIC,
        Chem.BondType.UNSPECIFIED,
    )
    nodes, edges = (np.cumsum([0, *counts]) for counts in (graphs.num_nodes, graphs.num_edges))
    assert graphs.node_feature is not None
    texts = []
    with rdBase.BlockLogs():
        for index in range(len(graphs.num_nodes)):
            atoms = graphs.node_feature[nodes[index] : nodes[index + 1]]
            bonds = slice(edges[index], edges[index + 1], 2)
            of_bonds = np.empty((0, 3), np.uint8) if graphs.edge_feature is None else graphs.edge_feature[bonds]
            texts.append(_smiles(Chem, atoms, graphs.edge_index[:, bonds].T, of_bonds, tags, kinds))
    return texts


def _smiles(chem: Any, atoms: np.ndarray, ends: np.ndarray, bonds: np.ndarray, tags: Any, kinds: Any) -> str:
    molecule = chem.RWMol()
    for row in atoms.tolist():
        atom = chem.Atom(0 if row[_ELEMENT] >= _MISC_ELEMENT else row[_ELEMENT] + 1)
        atom.SetFormalCharge(row[_CHARGE] - _CHARGE_OF_0)
        atom.SetNumExplicitHs(row[_HYDROGENS])
        atom.SetNumRadicalElectrons(row[_RADICALS])
        atom.SetNoImplicit(True)
        atom.SetIsAromatic(bool(row[7]))
        if row[_CHIRALITY] < len(tags):
            atom.SetChiralTag(tags[row[_CHIRALITY]])
        molecule.AddAtom(atom)
    for (begin, end), row in zip(ends.tolist(), bonds.tolist(), strict=True):
        molecule.AddBond(begin, end, kinds[min(row[0], len(kinds) - 1)])
    # What the graph lacks beside SMILES is the stereo of double bonds; it is appended, sorted.
    stereo = sorted(row[1] for row in bonds.tolist() if row[1])
    text = chem.MolToSmiles(molecule.GetMol())
    return f"{text} {''.join(map(str, stereo))}" if stereo else text
