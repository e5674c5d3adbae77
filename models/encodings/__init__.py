"""Encodings that tell a transformer where a node is: spectral, random-walk, identifier and degree encodings, and SPE.

All take `models.graphs.Graphs` and compute on its padded view, on the graphs' device, without a loop over graphs. Only `spe` is
differentiable.
"""
