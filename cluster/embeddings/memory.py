"""How much memory an owner of an embedding table takes for the messages of a step, beside its rows (`graphmill.cluster.embeddings.rows.table_bytes`)."""

from math import ceil

from graphmill.cluster.embeddings.client import READ_BYTES
from graphmill.cluster.embeddings.rows import most_rows
from graphmill.cluster.reduction.position_tree import Seat

_ID_BYTES = 8 + 32  # of a pushed row: its id, and finding the places of all of them


def message_bytes(
    width: int, num_nodes: int, num_owners: int, num_workers: int, num_positions: int, batch_rows: float
) -> int:
    """At the height of a step, whose `num_positions` micro-batches have so many distinct rows each.

    An owner keeps what all workers push until the step is applied: gradients of the nodes of the step's tree that each is left with. A node has the rows of all its
    micro-batches, and no more than there are. Applying them takes blocks of rows. Reads come before: then it holds a reply for each worker.
    """
    seat = Seat(0, num_workers, num_positions)
    pushed = sum(min((node.stop - node.start) * batch_rows, num_nodes) for own in seat.nodes_of_ranks for node in own)
    applied = most_rows(ceil(pushed), num_owners) * (4 * width + _ID_BYTES)
    replied = num_workers * min(READ_BYTES, 4 * width * most_rows(num_nodes, num_owners))
    return max(applied, replied)
