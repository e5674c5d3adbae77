"""Tests embedding tables: optimizers are compared with torch's, files are written and read, and the protocol is tested with lost, repeated and reordered
messages and with owners that die."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster.embeddings.client import READ_BYTES, OwnerHere, SavedAt, TableClient
from graphmill.cluster.embeddings.embeddings import Embeddings, TableSpec
from graphmill.cluster.embeddings.owner import TableOwner
from graphmill.cluster.embeddings.rows import (
    BLOCK_NUMBERS,
    RowIndex,
    SparseRows,
    TableConfig,
    TableShard,
    add_rows,
    initial_rows,
    most_rows,
    owner_of,
    saved_shards,
)
from graphmill.cluster.options import EmbeddingOptions
from graphmill.cluster.reduction.position_tree import Seat, fold, leaf
from graphmill.cluster.transport.embedding_messages import (
    SAVE,
    BeginTable,
    MarkTable,
    PushRows,
    ReadRows,
    TableRows,
    TableStatus,
)
from graphmill.core.errors import FormatError, StageError
from graphmill.samplers.access.router import local_router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.batches.typed_batch import node_tables, typed_to_torch
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import ingest
from tests.cluster.table_simulation import Course, Simulation
from tests.listed_graph import random_listed_graph

CONFIG = TableConfig(width=3, optimizer="adagrad", seed=5, num_nodes=20, is_exact=True, num_positions=3)


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_updates_are_those_of_torch(optimizer, dtype):
    """Our optimizers are compared with torch's Adagrad on sparse gradients and torch's SparseAdam, in float64 and float32."""
    config = replace(CONFIG, optimizer=optimizer, num_nodes=40, width=8)
    shard, ids = TableShard(config), np.arange(40)
    weight = torch.nn.Parameter(torch.tensor(shard.read(ids, best=False), dtype=dtype))
    kinds = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
    theirs = kinds[optimizer]([weight], lr=0.05)
    rng = np.random.default_rng(0)
    for step in range(30):
        rows = np.sort(rng.choice(40, int(rng.integers(1, 40)), replace=False))
        gradient = rng.normal(size=(len(rows), 8)).astype(np.float32)
        shard.update(step, 0.05, SparseRows(rows, gradient))
        values = torch.tensor(gradient, dtype=dtype)
        weight.grad = torch.sparse_coo_tensor(torch.tensor(rows)[None], values, weight.shape, check_invariants=True)
        theirs.step()
    expected = weight.detach().numpy()
    np.testing.assert_allclose(shard.read(ids, best=False), expected, rtol=2e-5, atol=2e-6)


def test_rows_begin_as_a_function_of_seed_and_id_and_uniform():
    ids = np.array([7, 2**62, 9, -4], np.int64)
    rows = initial_rows(5, ids, 16)
    assert np.array_equal(rows[[2, 0]], initial_rows(5, ids[[2, 0]], 16))
    assert not np.array_equal(rows, initial_rows(6, ids, 16))
    many = initial_rows(0, np.arange(4000), 16)
    assert many.dtype == np.float32
    assert abs(many).max() <= (3 / 16) ** 0.5
    assert many.mean() == pytest.approx(0, abs=0.005)
    assert (many**2).sum(axis=1).mean() == pytest.approx(1, rel=0.02)
    assert np.array_equal(many[[3999, 5]], initial_rows(0, np.array([3999, 5]), 16))  # across blocks
    # Rows of neighboring ids have no numbers in common: the random stream of row i does not begin at i · width.
    assert not set(many[0].tolist()) & set(many[1].tolist())


def test_owners_have_even_shares_that_the_arrays_hold():
    for num_owners in (1, 2, 7):
        counts = np.bincount(owner_of(np.arange(10_000) * 8, num_owners), minlength=num_owners)
        assert counts.max() <= most_rows(10_000, num_owners)
        assert counts.min() > 0.9 * 10_000 / num_owners


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), unique=True), max_size=6))
def test_the_index_finds_what_was_added(parts):
    index, places = RowIndex(), dict[int, int]()
    for part in parts:
        new = sorted(set(part) - places.keys())
        index.add(np.array(new, np.int64), np.arange(len(places), len(places) + len(new)))
        places |= {one: len(places) + i for i, one in enumerate(new)}
    ids = [*places, *range(-5, 5)]
    assert index.find(np.array(ids, np.int64)).tolist() == [places.get(one, -1) for one in ids]


def test_a_large_index_keeps_all(tmp_path):
    rng, index, known = np.random.default_rng(1), RowIndex(), np.empty(0, np.int64)
    order = rng.permutation(60_000)
    for some in np.array_split(order, 20):
        index.add(np.sort(some), len(known) + np.arange(len(some)))
        known = np.concatenate([known, np.sort(some)])
    assert np.array_equal(index.find(known), np.arange(60_000))


def test_a_saved_table_is_read_by_any_number_of_owners(tmp_path):
    rng = np.random.default_rng(2)
    owners = [TableShard(CONFIG, number, 3) for number in range(3)]
    ids = np.arange(20)
    for number, shard in enumerate(owners):
        own = ids[owner_of(ids, 3) == number][:-1]  # the last row is never updated
        shard.update(0, 0.1, SparseRows(own, rng.normal(size=(len(own), 3)).astype(np.float32)))
        shard.keep_best()
        shard.update(1, 0.1, SparseRows(own, rng.normal(size=(len(own), 3)).astype(np.float32)))
        shard.save(tmp_path)
    one = TableShard(CONFIG)
    one.load(tmp_path)
    for number, shard in enumerate(owners):
        own = ids[owner_of(ids, 3) == number]
        for best in (False, True):
            assert np.array_equal(one.read(own, best=best), shard.read(own, best=best))
        more = SparseRows(own, np.ones((len(own), 3), np.float32))
        for table in (one, shard):
            table.update(2, 0.1, more)  # this update also reads the optimizer's state
        assert np.array_equal(one.read(own, best=False), shard.read(own, best=False))
    assert len(list(saved_shards(tmp_path))) == 3
    (tmp_path / "table-0001-of-0003.ids.npy").unlink()
    with pytest.raises(FormatError, match="expected the files of 3 owners of a table, got 2"):
        TableShard(CONFIG).load(tmp_path)
    for file in ("ids", "rows", "best", "state0"):
        (tmp_path / f"table-0000-of-0003.{file}.npy").rename(tmp_path / f"table-0000-of-0001.{file}.npy")
    (tmp_path / "table-0002-of-0003.ids.npy").unlink()
    with pytest.raises(FormatError, match=r"expected float32 \[\d+, 4\], got float32 \[\d+, 3\]; another table's"):
        TableShard(replace(CONFIG, width=4)).load(tmp_path)


runs = st.tuples(
    st.integers(1, 4),  # number of owners
    st.lists(st.integers(1, 3), min_size=1, max_size=3),  # number of workers in each attempt
    st.sampled_from(["adagrad", "adam"]),
    st.sampled_from([0.0, 0.05, 0.2]),  # probability of faults
    st.integers(0, 2**32 - 1),
)


@given(runs)
def test_whatever_happens_to_messages_and_owners_the_table_is_the_serial_one(tmp_path_factory, run):
    """After every step, the rows and best rows that each worker reads equal those of a serial run, bit for bit."""
    num_owners, num_ranks, optimizer, faults, seed = run
    course = Course(replace(CONFIG, optimizer=optimizer), 8, seed)
    simulation = Simulation(course, tmp_path_factory.mktemp("run"), num_owners, random.Random(seed), faults)
    simulation.run(num_ranks)
    expected = course.reference()
    for step, seen in simulation.reads.items():
        assert all(map(np.array_equal, seen, expected[step])), step
    assert max(simulation.reads) == course.num_steps


def test_the_simulation_strikes(tmp_path):
    """Checks the simulation itself: with the usual probabilities of faults, every owner dies several times, and some restart from a checkpoint."""
    course = Course(CONFIG, 8, 11)
    simulation = Simulation(course, tmp_path, 3, random.Random(7), 0.2)
    simulation.run([3, 2, 3])
    assert min(network.deaths for network in simulation.networks) > 2
    assert list(tmp_path.glob("published-*"))


def test_the_simulation_has_workers_that_go_back_to_different_checkpoints(tmp_path):
    """The owner loads the later of the checkpoints. It keeps the gradients of later steps, because workers do not send them again."""
    kept = 0
    for seed in range(12):
        simulation = Simulation(Course(CONFIG, 8, seed), tmp_path / str(seed), 2, random.Random(seed), 0.2)
        simulation.run([2])
        kept += sum(network.kept for network in simulation.networks)
    assert kept > 2


def test_an_asynchronous_table_takes_gradients_as_they_come():
    owner = TableOwner(replace(CONFIG, is_exact=False), life=1)
    owner.answer(BeginTable(1, 0, ""))
    ids = np.arange(2)
    push = PushRows(1, 1, 0, 1, 0.5, (0,), (2,), (2,), ids, np.ones((2, 3), np.float32))
    for _ in range(2):  # the second push repeats the first
        assert owner.answer(push) == TableStatus(True, 1, 1, 0)
    shard = TableShard(CONFIG)
    shard.update(0, 0.5, SparseRows(ids, push.gradient))
    reply = owner.answer(ReadRows(1, 1, 3, False, ids))
    assert isinstance(reply, TableRows)
    assert np.array_equal(reply.rows, shard.read(ids, best=False))
    owner.answer(replace(push, start=(2,), stop=(3,)))
    assert owner.answer(replace(push, step=1)).step == 1


def test_an_asynchronous_table_keeps_gradients_over_a_later_checkpoint(tmp_path):
    """The worker that sent the gradients went back to an earlier checkpoint. It does not send these gradients again."""
    asynchronous, ids = replace(CONFIG, is_exact=False), np.arange(2)
    ones = np.ones((2, 3), np.float32)
    shard = TableShard(CONFIG)
    shard.save(tmp_path)  # after step 1, which changed no row
    owner = TableOwner(asynchronous, life=1)
    owner.answer(BeginTable(1, 0, ""))
    for step in range(2):
        owner.answer(PushRows(1, 1, step, -1, 0.5, (0,), (2,), (2,), ids, ones))
    owner.answer(BeginTable(1, 1, str(tmp_path)))
    shard.update(1, 0.5, SparseRows(ids, ones))
    reply = owner.answer(ReadRows(1, 1, 1, False, ids))
    assert isinstance(reply, TableRows)
    assert np.array_equal(reply.rows, shard.read(ids, best=False))


def test_a_step_and_a_load_in_blocks_of_rows_are_those_of_the_whole(tmp_path):
    """Steps and loads process the table in blocks of rows. Here rows are so wide that a block has two rows. Results equal those without blocks, bit for bit."""
    wide, rng = replace(CONFIG, width=BLOCK_NUMBERS // 2), np.random.default_rng(4)
    owner, whole = TableOwner(wide, life=1), TableShard(wide)
    owner.answer(BeginTable(1, 0, ""))
    for step in range(2):
        leaves = []
        for position in range(3):
            ids = np.sort(rng.choice(20, 8 * position, replace=False))
            values = (rng.normal(size=(len(ids), wide.width)) * 10.0 ** rng.integers(-4, 4, (len(ids), 1))).astype("f4")
            leaves.append(leaf(position, SparseRows(ids, values)))
            owner.answer(PushRows(1, 1, step, 1, 0.1, (position,), (position + 1,), (len(ids),), ids, values))
        (total,) = fold(leaves, 3, add_rows)
        whole.update(step, 0.1, total.value)
    reply = owner.answer(ReadRows(1, 1, 2, False, np.arange(20)))
    assert isinstance(reply, TableRows)
    assert np.array_equal(reply.rows, whole.read(np.arange(20), best=False))
    whole.save(tmp_path)
    loaded = TableShard(wide)
    loaded.load(tmp_path)
    for shard in (loaded, whole):
        shard.update(2, 0.1, total.value)
    assert np.array_equal(loaded.read(np.arange(20), best=False), whole.read(np.arange(20), best=False))


def test_a_batch_is_read_in_several_requests():
    wide = replace(CONFIG, width=READ_BYTES // 8)  # a request reads two rows of each owner
    owners = [OwnerHere(TableOwner(wide, number, 3)) for number in range(3)]
    client, ids = TableClient(owners, wide, 1, SavedAt(0, ""), 0.0, keeps_log=False), np.array([1, *range(3, 20)])
    client.look()
    assert np.array_equal(client.read(ids), initial_rows(wide.seed, ids, wide.width))


def test_what_an_earlier_attempt_sends_late_is_refused():
    owner = TableOwner(CONFIG, life=1)
    owner.answer(BeginTable(4, 0, ""))
    with pytest.raises(StageError, match="attempt 3 has ended, 4 has begun"):
        owner.answer(BeginTable(3, 0, ""))
    with pytest.raises(StageError, match="attempt 3 has ended, 4 has begun"):
        owner.answer(PushRows(3, 1, 0, -1, 0.1, (0,), (3,), (0,), np.empty(0, np.int64), np.empty((0, 3), np.float32)))


def test_a_gradient_that_is_not_finite_ends_the_attempt_for_all():
    owner = TableOwner(CONFIG, life=1)
    owner.answer(BeginTable(1, 0, ""))
    bad = np.array([[0, 1, 2], [0, np.nan, 0]], np.float32)
    with pytest.raises(StageError, match="the gradient of the row of node 9 is not finite at step 0"):
        owner.answer(PushRows(1, 1, 0, 1, 0.1, (0,), (3,), (2,), np.array([4, 9]), bad))
    with pytest.raises(StageError, match="node 9 is not finite"):
        owner.answer(ReadRows(1, 1, 0, False, np.array([4])))
    owner.answer(BeginTable(2, 0, ""))
    assert isinstance(owner.answer(ReadRows(2, 1, 0, False, np.array([4]))), TableRows)


def test_a_folder_that_cannot_be_written_ends_the_attempt(tmp_path):
    (tmp_path / "file").write_text("")
    owner = TableOwner(CONFIG, life=1)
    owner.answer(BeginTable(1, 0, ""))
    owner.answer(PushRows(1, 1, 0, 1, 0.1, (0,), (3,), (0,), np.empty(0, np.int64), np.empty((0, 3), np.float32)))
    with pytest.raises(StageError, match="file"):
        owner.answer(MarkTable(1, 1, 1, SAVE, 1, str(tmp_path / "file")))
    with pytest.raises(StageError, match="file"):
        owner.answer(ReadRows(1, 1, 1, False, np.empty(0, np.int64)))


def test_sums_are_over_the_ids_of_both():
    left = SparseRows(np.array([1, 4]), np.array([[1.0], [2.0]], np.float32))
    right = SparseRows(np.array([0, 4]), np.array([[8.0], [16.0]], np.float32))
    total = add_rows(left, right)
    assert total.ids.tolist() == [0, 1, 4]
    assert total.values[:, 0].tolist() == [8.0, 1.0, 18.0]


def test_one_type_and_one_relation_have_the_plain_graphs_rows(tmp_path):
    """A typed graph with one type and one relation has the losses and rows of the plain graph, byte for byte. With two types, every node has a row."""
    graph = replace(random_listed_graph(40, 160), original_id=None)
    ingest(graph, str(tmp_path / "graph"))
    plain, found = local_router(open_graph(str(tmp_path / "graph"), kind=StoredGraph)), []
    one = TypedRouter({"node": plain}, {Relation("node", "edge", "node"): plain})
    two = TypedRouter({"node": plain, "other": plain}, {Relation("node", "to", "other"): plain})
    for router, types in ((plain, ()), (one, ("node",)), (two, ("node", "other"))):
        spec, seen = TableSpec(EmbeddingOptions(width=3, node_types=types), 80, seed=5), set()
        table = Embeddings(spec, Seat(0, 1, 2), torch.device("cpu"))
        table.begin(SavedAt(0, ""))
        options = NeighborOptions((4, 3), 4, root_split=None, root_type="other" if router is two else None)
        sampler, losses, collate = NeighborSampler(router, options, 2), [], typed_to_torch if types else to_torch
        for step in range(3):
            batches = [collate(sampler.sample(0, 2 * step + position)) for position in range(2)]
            rows = [own.x for batch in table.for_step(batches) for own in node_tables(batch).values()]
            seen |= {
                (name, n) for each in batches for name, own in node_tables(each).items() for n in own.node_id.tolist()
            }
            assert {own.shape[1] for own in rows} == {4 + 3}
            losses.append(sum(own[:, -3:].sin().cumsum(0).sum() for own in rows))
            losses[-1].backward()
            table.push(1.0, learns=True)
        ids = np.arange(80)
        after = table.client.read(ids)
        assert (after != initial_rows(5, ids, 3)).any(axis=1).sum() == len(seen)
        found.append(([loss.item() for loss in losses], after.tobytes()))
        table.close()
    assert found[0] == found[1] != found[2]
