"""GECO over many graphs: the sizes of `recipes/defaults/graphs-geco.yaml`."""

from functools import partial

from models.options.features import atoms, bonds
from models.options.geco import FilterConfig
from models.options.geco_graphs import GECOGraphsConfig
from models.options.gps import GPSOptions, PositionOptions

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
"""Molecules of QM9's size, one number, the GPS hybrid: 0.5M parameters. Use `models.geco.param_groups` for the filters."""
