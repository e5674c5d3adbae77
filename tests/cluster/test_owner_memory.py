"""If all rows are updated, kept as best, saved and read, an owner's peak memory equals the planned memory."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from graphmill.cluster.embeddings.client import SavedAt, TableClient, message_bytes
from graphmill.cluster.embeddings.rows import SparseRows, TableConfig, add_rows, owner_of, table_bytes
from graphmill.cluster.reduction.position_tree import Seat, leaf
from graphmill.cluster.transport.embedding_messages import KEEP_BEST, SAVE
from tests.cluster.owner_process import owner_process

NUM_NODES, WIDTH, NUM_OWNERS = 258_111, 64, 4


def steps(ids: np.ndarray, num_positions: int, batch_rows: int) -> Iterator[list[np.ndarray]]:
    """Yields the ids of each micro-batch of a step. The first batches have each id once. Later batches have random ids, at most `batch_rows` of them."""
    rng = np.random.default_rng(0)
    order = rng.permutation(ids)
    batches = [np.sort(order[first : first + batch_rows]) for first in range(0, len(ids), batch_rows)]
    while len(batches) % num_positions or len(batches) < 8 * num_positions:
        size = int(batch_rows * rng.uniform(0.5, 1))
        batches.append(np.sort(rng.choice(ids, size, replace=False)))
    return (batches[first : first + num_positions] for first in range(0, len(batches), num_positions))


@pytest.mark.parametrize(
    ("batch_rows", "num_positions", "num_ranks", "optimizer", "is_exact"),
    [
        (500, 4, 2, "adagrad", True),
        (8000, 4, 2, "adagrad", True),
        pytest.param(8000, 4, 2, "adagrad", False, marks=pytest.mark.long),
        pytest.param(500, 8, 8, "adam", True, marks=pytest.mark.long),
        pytest.param(4000, 8, 8, "adagrad", True, marks=pytest.mark.long),
        pytest.param(8000, 4, 4, "adam", True, marks=pytest.mark.long),
    ],
)
def test_memory_is_within_a_tenth_of_the_plan(
    tmp_path: Path, batch_rows, num_positions, num_ranks, optimizer, is_exact
):
    """`batch_rows`: largest number of rows of one owner in a micro-batch."""
    config = TableConfig(WIDTH, optimizer, 0, NUM_NODES, is_exact, num_positions)
    ids = np.flatnonzero(owner_of(np.arange(NUM_NODES), NUM_OWNERS) == 0)
    seats = [Seat(rank, num_ranks, num_positions) for rank in range(num_ranks)]
    with owner_process(config, 0, NUM_OWNERS) as owner, ThreadPoolExecutor(num_ranks) as pool:
        clients = [
            TableClient([owner.open()], config, 1, SavedAt(0, ""), 60.0, keeps_log=False) for _ in range(num_ranks)
        ]
        for client in clients:
            client.look()

        def read(rank: int, step: list[np.ndarray]) -> None:
            clients[rank].read(np.unique(np.concatenate([step[p] for p in seats[rank].positions])))

        def push(rank: int, step: list[np.ndarray]) -> None:
            ones = [SparseRows(step[p], np.ones((len(step[p]), WIDTH), np.float32)) for p in seats[rank].positions]
            leaves = [leaf(p, rows) for p, rows in zip(seats[rank].positions, ones, strict=True)]
            clients[rank].push(0.1, seats[rank].fold(leaves, add_rows))

        for step in steps(ids, num_positions, batch_rows):
            for work in (read, push):
                list(pool.map(work, range(num_ranks), [step] * num_ranks))
        for kind, folder in ((KEEP_BEST, ""), (SAVE, str(tmp_path))):
            for marked in [client.marking(kind, folder) for client in clients]:
                marked.finish(60.0)
        list(pool.map(lambda client: client.read(ids), clients))
        grown = owner.peak_bytes()
    rows = table_bytes(WIDTH, optimizer, NUM_NODES, NUM_OWNERS)
    messages = message_bytes(WIDTH, NUM_NODES, NUM_OWNERS, num_ranks, num_positions, NUM_OWNERS * batch_rows)
    print(
        f"rows of {rows / 1e6:.1f} MB and messages of {messages / 1e6:.1f} MB planned, {grown / 1e6:.1f} MB grown: "
        f"{grown / (rows + messages):.3f}"
    )
    assert grown == pytest.approx(rows + messages, rel=0.1)
