"""Primphormer's published models (ICML 2025), of data sets that have no recipe too."""

from functools import partial
from typing import Any

from graphmill.models.options.features import Features, atoms, bonds
from graphmill.models.options.gps import GPSOptions, PositionOptions
from graphmill.models.options.primphormer import PrimalOptions, PrimphormerConfig


def _column(
    shape: tuple[int, int, int],
    drops: tuple[float, float],
    position: PositionOptions,
    virtual: tuple[int, float],
    **options: Any,
) -> partial[PrimphormerConfig]:
    """A column of the paper's table: (L, D, H), (dropout, attention dropout), (N_s, η); s = N_s in every column."""
    num_layers, width, num_heads = shape
    num_virtual, eta = virtual
    column: dict[str, Any] = {
        "width": width,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "primal": PrimalOptions(
            num_virtual, dropout=drops[1], virtual_nodes="running", heads="shared", score_terms="batch"
        ),
        "layer": GPSOptions(mlp="residual", dropout=drops[0]),
        "position": position,
        "eta": eta,
    }
    return partial(PrimphormerConfig, **column | options)


# Below, "200, 1e-3, 300, 1e-5" is the published training: batch, learning rate, epochs, weight decay. Optimizer and schedule are not published.
_LAPLACIAN = PositionOptions("laplacian", steps=10, normalisation="none")
_GATE = PositionOptions("stable_laplacian", 8, normalisation="none")
_OBJECTS: dict[str, Any] = {"node": Features(dim=14), "edge": Features(dim=2), "task": "node"}
_MOLECULES: dict[str, Any] = {"node": atoms(), "edge": bonds()}

pascalvoc_sp = _column((6, 80, 1), (0.15, 0.5), _LAPLACIAN, (30, 0.1), out_dim=21, head_layers=1, **_OBJECTS)
"""PascalVOC-SP: 14 node and 2 edge numbers, 21 classes of nodes. 200, 1e-3, 300, 1e-5."""

coco_sp = _column((7, 56, 2), (0.0, 0.5), _LAPLACIAN, (20, 0.1), out_dim=81, **_OBJECTS)
"""COCO-SP: 14 node and 2 edge numbers, 81 classes of nodes. 150, 1e-3, 300, 1e-2."""

peptides_func = _column((4, 96, 4), (0.1, 0.1), PositionOptions("random_walk", 16), (30, 0.1), out_dim=10, **_MOLECULES)
"""Peptides-func: molecules, ten labels. 200, 1e-3, 250, 1e-2."""

peptides_struct = _column(
    (4, 96, 4), (0.15, 0.5), PositionOptions("random_walk", 20), (40, 0.1), out_dim=11, **_MOLECULES
)
"""Peptides-struct: molecules, eleven numbers. 200, 1e-3, 250, 1e-2."""

pcqm_contact = _column((7, 64, 4), (0.0, 0.56), _LAPLACIAN, (30, 0.1), task="link", **_MOLECULES)
"""PCQM-Contact: molecules, links between atoms. 128, 3e-4, 250, 0."""

_PIXELS: dict[str, Any] = {"out_dim": 10, "edge": Features(dim=1), "head": "graphgym", "head_layers": 2}

cifar10 = _column((3, 52, 1), (0.15, 0.5), _GATE, (20, 0.1), node=Features(dim=5), **_PIXELS)
"""CIFAR10 superpixels: colour and place, ten classes. 200, 1e-3, 300, 1e-2."""

mnist = _column((4, 40, 1), (0.1, 0.5), _GATE, (30, 0.1), node=Features(dim=3), **_PIXELS)
"""MNIST superpixels: intensity and place, ten classes. 200, 1e-3, 300, 1e-5."""

malnet_tiny = _column(
    (5, 84, 1),
    (0.15, 0.5),
    PositionOptions(),
    (50, 0.1),
    out_dim=5,
    node=Features(dim=5),
    edge=Features(categories=(4,)),
    pool="max",
    head="graphgym",
)
"""MalNet-Tiny: call graphs with the five numbers of a local degree profile, four kinds of edges, five classes. 64, 1e-3, 300, 1e-3."""

pattern = _column(
    (6, 48, 1),
    (0.0, 0.5),
    PositionOptions("stable_laplacian", 10, normalisation="none"),
    (30, 0.1),
    out_dim=1,
    node=Features(dim=3),
    task="node",
    head="graphgym",
)
"""PATTERN: three numbers a node, two classes of nodes by one logit. 128, 1e-3, 200, 1e-5."""

cluster = _column(
    (12, 52, 1),
    (0.15, 0.5),
    PositionOptions("stable_laplacian", 10, normalisation="none"),
    (40, 0.1),
    out_dim=6,
    node=Features(dim=7),
    task="node",
    head_layers=1,
)
"""CLUSTER: seven numbers a node, six classes of nodes. 48, 1e-3, 300, 1e-5."""


def node_classification(in_dim: int, out_dim: int, **options: Any) -> PrimphormerConfig:
    """One graph of thousands of nodes with numeric features, GCN beside the attention; not in the paper.

    AdamW, weight decay 5e-4, cosine after 5 % warm-up, gradients clipped to 1. Whole graph of 7,650 nodes: lr 5e-3. A graph of
    13,752 nodes: lr 2e-3, random chunks, dropout 0.4 and none of the scores; at 5e-3 the penalty, a high power of the parameters, ran away.
    """
    preset = partial(
        PrimphormerConfig,
        task="node",
        width=128,
        num_layers=3,
        primal=PrimalOptions(num_virtual=30, dropout=0.1),
        layer=GPSOptions(local="gcn", mlp="residual", dropout=0.5),
        head_layers=1,
        input_dropout=0.2,
    )
    return preset(node=Features(dim=in_dim), out_dim=out_dim, **options)


small = partial(
    PrimphormerConfig,
    node=atoms(),
    edge=bonds(),
    width=80,
    num_layers=6,
    primal=PrimalOptions(num_virtual=20),
    layer=GPSOptions(mlp="residual"),
    position=PositionOptions("random_walk", 16),
)
"""Molecules of QM9's size, one number: 0.5M parameters."""


def products(in_dim: int = 100, out_dim: int = 47, **options: Any) -> PrimphormerConfig:
    """ogbn-products in ten random partitions: two layers of width 128 with GCN; the paper gives no more than that."""
    preset = partial(
        PrimphormerConfig,
        task="node",
        width=128,
        num_layers=2,
        num_heads=1,
        primal=PrimalOptions(dropout=0.1),
        layer=GPSOptions(local="gcn", dropout=0.3),
        head_layers=1,
        input_dropout=0.2,
    )
    return preset(node=Features(dim=in_dim), out_dim=out_dim, **options)
