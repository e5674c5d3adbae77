"""Encodes an age by fixed cosines, which are appended to a node's features. The age is the root's time minus the time of the node's newest edge.

This is GraphMixer's time encoding (arXiv:2302.11636, section 3.1): z_i = cos(age · α^(-(i-1)/β)) for i = 1 … d, with α = β = √d. A copy of a node
(`graphmill.samplers.drawing.timed_copies`) belongs to one root time. Its age is this time minus the time of the newest edge by which the batch reaches the
copy; a root has age 0. The unit of ages matters: the longest period of d cosines is 2π · √d^((d-1)/√d) units. For d = 16 that is 1,137 units, for d = 100 about
5 · 10^10.
"""

import numpy as np


def encode_ages(age: np.ndarray, dim: int, unit: float = 1.0) -> np.ndarray:
    """float32 [n, dim]: the encoding z (see the module) of age / unit. `age` [n] is in the unit of the graph's times."""
    root = np.sqrt(dim)
    frequency = root ** (-np.arange(dim) / root)
    return np.cos((np.asarray(age, np.float64) / unit)[:, None] * frequency).astype(np.float32)


def ages_of_copies(root_time: np.ndarray, source: np.ndarray, edge_time: np.ndarray) -> np.ndarray:
    """int64 [n]: each copy's root time minus the time of the newest edge that begins at the copy; 0 if no edge begins there."""
    newest = np.full(len(root_time), np.iinfo(np.int64).min)
    np.maximum.at(newest, source, edge_time)
    reached = np.zeros(len(root_time), bool)
    reached[source] = True
    return np.subtract(root_time, newest, out=np.zeros_like(root_time), where=reached)
