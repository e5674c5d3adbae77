"""What tells a transformer where a node is: spectral, random-walk, identifier, degree encodings, and SPE.

All of them take `models.graphs.Graphs` and compute on its padded view, on the device the graphs are on, with no loop over
graphs. None of them is differentiable with respect to anything, save `spe`.
"""
