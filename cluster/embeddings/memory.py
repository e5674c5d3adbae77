"""Computes the memory that an owner of an embedding table needs for the messages of a step. The memory of its rows is
`graphmill.cluster.embeddings.rows.table_bytes`."""

from math import ceil

from graphmill.cluster.embeddings.client import READ_BYTES
from graphmill.cluster.embeddings.rows import most_rows
from graphmill.cluster.reduction.position_tree import Seat

_ID_BYTES = 8 + 32  # memory for a pushed row: its id, and the search for its place


def message_bytes(
    width: int, num_nodes: int, num_owners: int, num_workers: int, num_positions: int, batch_rows: float
) -> int:
    """Returns the peak memory in a step with `num_positions` micro-batches of `batch_rows` distinct rows each.

    An owner keeps the gradients that all workers push until the step is applied. A worker pushes one partial sum for each of its nodes of the step's tree.
    A partial sum has the rows of all its micro-batches, at most `num_nodes`. Applying the gradients takes memory only for blocks of rows. In the reads before
    the step, the owner holds one reply per worker.
    """
    seat = Seat(0, num_workers, num_positions)
    pushed = sum(min((node.stop - node.start) * batch_rows, num_nodes) for own in seat.nodes_of_ranks for node in own)
    applied = most_rows(ceil(pushed), num_owners) * (4 * width + _ID_BYTES)
    replied = num_workers * min(READ_BYTES, 4 * width * most_rows(num_nodes, num_owners))
    return max(applied, replied)
