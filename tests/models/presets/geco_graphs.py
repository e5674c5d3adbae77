"""GECO over many graphs: the sizes of `recipes/defaults/graphs-geco.yaml`."""

from functools import partial

from graphmill.models.options.features import Features, atoms, bonds
from graphmill.models.options.geco import FilterConfig
from graphmill.models.options.geco_graphs import GECOGraphsConfig
from graphmill.models.options.gps import GPSOptions, PositionOptions

small = partial(
    GECOGraphsConfig,
    node=atoms(),
    edge=bonds(),
    width=76,
    num_layers=5,
    filter=FilterConfig(inner_width=32, scale="length"),
    # Not by batch: the gated convolution is of third degree in its input, and statistics of molecules of twenty atoms let those of
    # two or three grow without bound.
    layer=GPSOptions(mlp="residual", norm="layer"),
    position=PositionOptions("random_walk", 16),
)
"""Molecules of QM9's size, one number, the GPS hybrid: 0.5M parameters. Use `graphmill.models.geco.param_groups` for the filters."""

# GECO in the place of GraphGPS's attention. The paper gives no sizes but PCQM4Mv2's 6.2M; these are GraphGPS's and the Long Range Graph Benchmark's.
_LONG_RANGE = partial(
    GECOGraphsConfig,
    width=96,
    num_layers=4,
    filter=FilterConfig(inner_width=32, scale="length"),
    layer=GPSOptions(mlp="residual"),
    position=PositionOptions("laplacian", 16, steps=10, normalisation="none"),
    head="graphgym",
)
pascalvoc_sp = partial(_LONG_RANGE, node=Features(dim=14), edge=Features(dim=2), out_dim=21, task="node")
coco_sp = partial(pascalvoc_sp, out_dim=81)
peptides_func = partial(_LONG_RANGE, node=atoms(), edge=bonds(), out_dim=10)
peptides_struct = partial(peptides_func, out_dim=11)
pcqm_contact = partial(_LONG_RANGE, node=atoms(), edge=bonds(), task="link")
pcqm4mv2 = partial(
    _LONG_RANGE,
    node=atoms(),
    edge=bonds(),
    width=304,
    num_layers=5,
    position=PositionOptions("random_walk", 20, steps=16),
    head="halving",
)
"""GPS-small's sizes."""
