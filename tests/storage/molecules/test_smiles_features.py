"""Features of every molecule equal OGB's features. Other texts are rejected with a reason."""

import csv
import gzip
import itertools

import numpy as np
import pytest

from graphmill.storage.format.graph_set_manifest import Reject
from graphmill.storage.molecules.molecule_source import MoleculeRows, hashed_split
from graphmill.storage.molecules.smiles_features import ATOMS, BONDS, Featuriser, _Kinds

pytest.importorskip("rdkit")
pytest.importorskip("ogb")


def _rows(smiles, line=1, rejects=()):
    count = len(smiles)
    return MoleculeRows(
        index=0,
        row=np.arange(count),
        line=np.arange(line, line + count),
        smiles=list(smiles),
        target=np.arange(count, dtype=np.float32)[:, None],
        split=np.ones(count, np.int8),
        rejects=tuple(rejects),
    )


def _assert_equals_ogb(smiles, featuriser=None):
    from ogb.utils.mol import smiles2graph
    from rdkit.rdBase import BlockLogs

    molecules = (featuriser or Featuriser()).featurise(_rows(smiles))
    graphs, node, edge = molecules.graphs, 0, 0
    for position, index in enumerate(molecules.original_id):
        with BlockLogs():
            expected = smiles2graph(smiles[index])
        nodes, edges = graphs.num_nodes[position], graphs.num_edges[position]
        assert nodes == expected["num_nodes"], smiles[index]
        np.testing.assert_array_equal(graphs.node_feature[node : node + nodes], expected["node_feat"], smiles[index])
        np.testing.assert_array_equal(graphs.edge_feature[edge : edge + edges], expected["edge_feat"], smiles[index])
        np.testing.assert_array_equal(graphs.edge_index[:, edge : edge + edges], expected["edge_index"], smiles[index])
        node, edge = node + nodes, edge + edges
    assert (node, edge) == (len(graphs.node_feature), len(graphs.edge_feature))
    np.testing.assert_array_equal(graphs.target[:, 0], molecules.original_id)
    return molecules


ODD = [
    "C",
    "[H][H]",
    "[Na+].[Cl-]",
    "O=C=O",
    "N(=O)(=O)c1ccccc1",  # RDKit rewrites this nitro group with charges
    "F/C=C/F",
    "F/C=C\\F",
    "F\\C=C\\F",
    "FC=CF",
    "N[C@@H](C)C(=O)O",
    "N[C@H](C)C(=O)O",
    "NC(C)C(=O)O",
    "C[S@](=O)c1ccccc1",
    "[CH3]",
    "[Cu+2]",
    "F[P-](F)(F)(F)(F)F",
    "S(F)(F)(F)(F)(F)F",
    "c1ccc2[nH]ccc2c1",
    "[13CH4]",
    "[2H]C([2H])([2H])[2H]",
    "*C",
    "C#N",
    "[Fe]",
    "O=C1O[Pt@SP1]2(N)OC1=O.N2",
    "[C-]#[N+]C",
    "Cl[Pt](Cl)(N)N",
    "[Co+3]<-N",
    "CC |atomProp:0.note.x|",
    "C name@with/signs",
    "CC(F)C(C)O |o1:1,3|",
]


def test_odd_molecules_equal_ogb():
    molecules = _assert_equals_ogb(ODD)
    assert len(molecules.original_id) >= len(ODD) - 2
    assert molecules.graphs.num_edges[0] == 0  # methane has one atom and no bond


def test_order_of_molecules_does_not_matter():
    """Cached rows of one molecule must not change the next molecule. Chirality and stereo are read only if the SMILES has them."""
    for order in itertools.permutations(["FC=CF", "F/C=C/F", "N[C@@H](C)C(=O)O", "NC(C)C(=O)O"]):
        _assert_equals_ogb(list(order))


@pytest.mark.parametrize(
    ("file", "every"),
    [("qm9_gap_union", 150), ("pcqm4mv2-2k", 5), ("hiv", 100), ("zinc_val_test_targets", 80)],
)
def test_real_molecules_equal_ogb(real_data, file, every):
    path = real_data / "molecules" / f"{file}.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rt") as text:
        smiles = [row["smiles"] for row in csv.DictReader(text)][::every]
    molecules = _assert_equals_ogb(smiles)
    assert len(molecules.original_id) > 0.99 * len(smiles) > 200


def test_vocabularies_are_ogb_s():
    from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims

    assert list(ATOMS.categories) == get_atom_feature_dims()
    assert list(BONDS.categories) == get_bond_feature_dims()
    assert (ATOMS.dim, BONDS.dim) == (len(ATOMS.categories), len(BONDS.categories))


def test_rejects_name_line_text_and_reason():
    smiles = ["CC", "not a molecule", "C(C)(C)(C)(C)C", "", "c1cccc1", "CO", "C1CC", "   "]
    earlier = Reject(11, "x,y,z", "expected 2 fields, got 3")
    molecules = Featuriser().featurise(_rows(smiles, line=10, rejects=[earlier]))
    assert molecules.original_id.tolist() == [0, 5]
    assert molecules.graphs.target[:, 0].tolist() == [0, 5]
    assert molecules.graphs.num_nodes.tolist() == [2, 2]
    found = {(reject.line, reject.text): reject.reason for reject in molecules.rejects}
    assert [reject.line for reject in molecules.rejects] == sorted(line for line, _ in found)
    assert found[11, "x,y,z"] == earlier.reason
    assert found[11, smiles[1]] == "not SMILES"
    assert "Explicit valence for atom # 0 C, 5" in found[12, smiles[2]]
    assert found[13, ""] == "no atoms"
    assert "kekulize" in found[14, smiles[4]]
    assert found[16, smiles[6]] == "not SMILES"
    assert (17, "   ") in found


def test_nothing_but_rejects():
    molecules = Featuriser().featurise(_rows(["x", "y"]))
    assert molecules.graphs.node_feature.shape == (0, 9)
    assert molecules.graphs.edge_index.shape == (2, 0)
    assert molecules.graphs.target.shape == (0, 1)
    assert len(molecules.rejects) == 2


def test_rdkit_stays_quiet(capfd):
    Featuriser().featurise(_rows(["not a molecule", "C(C)(C)(C)(C)C"]))
    assert capfd.readouterr() == ("", "")


def test_stereo_that_ogb_does_not_have_is_rejected():
    """RDKit reads atropisomers from wedged bonds, and OGB's function fails on them."""
    smiles = (
        "Cc1cccc(I)c1-c1c(C)cccc1Br |(-2.1,2.1,;-2.1,0.6,;-3.4,-0.2,;-3.4,-1.7,;-2.1,-2.5,;-0.8,-1.7,;0.5,-2.4,;-0.8,-0.2,;"
        "0.5,0.6,;0.5,2.1,;-0.8,2.8,;1.8,2.8,;3.1,2.1,;3.1,0.6,;1.8,-0.2,;1.8,-1.7,),wU:7.6|"
    )
    molecules = Featuriser().featurise(_rows([smiles, "CC"]))
    if len(molecules.original_id) == 2:
        pytest.skip("this RDKit sees no atropisomer here")
    assert "STEREOATROP" in molecules.rejects[0].reason
    assert molecules.graphs.num_nodes.tolist() == [2]


def test_hashed_split_is_the_documented_function():
    import hashlib

    texts = ["C" * count + "O" for count in range(1, 2001)]
    shares = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64 for text in texts]
    codes = np.array([hashed_split(text) for text in texts])
    np.testing.assert_array_equal(codes, np.digitize(shares, [0.8, 0.9]) + 1)
    np.testing.assert_allclose(np.bincount(codes)[1:] / 2000, (0.8, 0.1, 0.1), atol=0.02)
    assert hashed_split("CCO") == hashed_split("CCO |extension|")
    assert hashed_split("") in (1, 2, 3)


def _kinds(smiles, binaries):
    from rdkit import Chem

    molecules = [Chem.MolFromSmiles(each) for each in smiles]
    asked = []

    def molecule(index):
        asked.append(index)
        return molecules[index]

    sizes = [(each.GetNumAtoms(), each.GetNumBonds()) for each in molecules]
    return _Kinds.read(binaries or [each.ToBinary(0) for each in molecules], sizes, molecule), asked


def test_the_binary_form_gives_the_kinds_that_atoms_and_bonds_give():
    smiles = [each for each in ODD if _molecule(each) is not None]
    read, asked = _kinds(smiles, None)
    assert len(asked) < len(smiles) / 2
    for index, each in enumerate(smiles):
        read.ask(index, _molecule(each))
    again, _ = _kinds(smiles, None)
    for name in ("atoms", "bonds", "ends"):
        np.testing.assert_array_equal(getattr(again, name), getattr(read, name))


def test_a_binary_form_of_another_version_or_cut_anywhere_is_not_read():
    smiles = "F/C=C/c1ccccc1[N+](=O)[O-]"
    whole = _molecule(smiles).ToBinary(0)
    expected, asked = _kinds([smiles], [whole])
    assert asked == []
    other = whole[:12] + bytes([whole[12] + 1]) + whole[13:]
    flagged = whole[:31] + bytes([whole[31] | 0x10]) + whole[32:]
    ends = whole.rindex(bytes([1, 0, 0, 0, 6]))  # the number of rings and the first ring's size
    for binary in (other, flagged, *(whole[:size] for size in range(ends + 5))):
        found, asked = _kinds([smiles], [binary])
        assert asked == [0], len(binary)
        np.testing.assert_array_equal(found.atoms, expected.atoms)
        np.testing.assert_array_equal(found.ends, expected.ends)


def test_a_binary_form_that_is_misread_is_noticed(monkeypatch):
    """As if a new RDKit changed the meaning of a byte but not the version."""
    read = _Kinds.read

    def misread(*arguments):
        kinds = read(*arguments)
        kinds.atoms[:] += 1 << 26  # a hydrogen more
        return kinds

    monkeypatch.setattr(_Kinds, "read", misread)
    _assert_equals_ogb(["CCO", "c1ccccc1", "C" * 300])


def _molecule(smiles):
    from rdkit import Chem

    return Chem.MolFromSmiles(smiles)
