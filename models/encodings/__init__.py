"""Encodings that tell a transformer where a node is: spectral, random-walk, identifier and degree encodings, and SPE.

All take `graphmill.models.primitives.graphs.Graphs` and compute on its padded view, on the graphs' device, without a loop over graphs. Only `spe` is
differentiable.
"""
