"""Memory of an owner of an embedding table for the messages of a step, in addition to its rows (`graphmill.cluster.embeddings.rows.table_bytes`)."""

from math import ceil

from graphmill.cluster.embeddings.client import READ_BYTES
from graphmill.cluster.embeddings.rows import most_rows
from graphmill.cluster.reduction.position_tree import Seat

_ID_BYTES = 8 + 32  # of a pushed row: its id, and the search for its place


def message_bytes(
    width: int, num_nodes: int, num_owners: int, num_workers: int, num_positions: int, batch_rows: float
) -> int:
    """Peak memory in a step with `num_positions` micro-batches of `batch_rows` distinct rows each.

    An owner keeps what all workers push until the step is applied: the gradients of each worker's remaining nodes of the step's tree. A node has the
    rows of all its micro-batches, at most `num_nodes`. Applying them needs only blocks of rows. Before that, in reads, the owner holds one reply per worker.
    """
    seat = Seat(0, num_workers, num_positions)
    pushed = sum(min((node.stop - node.start) * batch_rows, num_nodes) for own in seat.nodes_of_ranks for node in own)
    applied = most_rows(ceil(pushed), num_owners) * (4 * width + _ID_BYTES)
    replied = num_workers * min(READ_BYTES, 4 * width * most_rows(num_nodes, num_owners))
    return max(applied, replied)
