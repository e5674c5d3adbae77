"""Tests the receipt of a run: what it records, that its chain tells any change, and that starts after a fault leave one consistent chain."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn

from graphmill.cluster.receipts.chain import Entry, Mark, TensorDigests, read_receipt, whole_lines
from graphmill.cluster.receipts.digests import batch_number, step_ids, tensor_digests
from graphmill.cluster.receipts.host_facts import differing_facts, facts_of_ranks
from graphmill.cluster.receipts.receipt_file import ReceiptFile
from graphmill.cluster.receipts.step_receipts import StepReceipts, distance
from graphmill.cluster.runs.run_directory import write_atomic
from graphmill.core.errors import FormatError

WEIGHTS = TensorDigests("0" * 32, "abcdef", 1.0)
OWN = {"workers": 1, "facts": {"threads": 1}, "weights": asdict(WEIGHTS), "tensors": ["a"], "trained": ["a"]}
CONFIG = b'{"fit": {"epochs": 3}}'
NUM_STEPS = 4


def entry(epoch: int, step: int, marked: bool = False) -> Entry:
    mark = Mark(WEIGHTS, replace(WEIGHTS, norm=epoch + step / 10)) if marked else None
    return Entry(epoch, step, f"{epoch:06d}{step:06d}", 1.0 / (1 + epoch + step), 0.5, mark)


def record(*entries: Entry) -> dict:
    mark = entries[-1].mark
    body = {"kind": "receipt", "entries": [each.row for each in entries], "of": NUM_STEPS}
    return body if mark is None else {**body, "mark": asdict(mark)}


def steps(first: int, stop: int) -> list[Entry]:
    return [entry(*divmod(number, NUM_STEPS), marked=number % 3 == 2) for number in range(first, stop)]


def write(folder, *groups: list[Entry], position=(0, 0), metrics=()) -> ReceiptFile:
    folder.mkdir(exist_ok=True)
    receipt = ReceiptFile(folder, write_atomic)
    receipt.cut(position, list(metrics))
    start = {"kind": "receipt-start", "epoch": position[0], "step": position[1], **OWN}
    receipt.take(start, lambda: CONFIG)
    for group in groups:
        receipt.take(record(*group))
    return receipt


def lines_of(folder) -> list[bytes]:
    return whole_lines((folder / "receipt.jsonl").read_bytes())


def read(folder):
    return read_receipt(lines_of(folder), "receipt")


def by_marks(entries: list[Entry]) -> list[list[Entry]]:
    groups: list[list[Entry]] = [[]]
    for each in entries:
        groups[-1].append(each)
        if each.mark is not None:
            groups.append([])
    return [group for group in groups if group]


def test_the_chain_of_a_run_does_not_depend_on_how_entries_are_grouped_or_repeated(tmp_path):
    whole = write(tmp_path / "whole", *by_marks(steps(0, 12)))
    whole.end(b"{}")
    single = write(tmp_path / "single", *([each] for each in steps(0, 7)))
    # a worker was killed after step 6, and the run continues from a checkpoint after step 4
    again = write(tmp_path / "single", *([each] for each in steps(5, 12)), position=(1, 1))
    again.end(b"{}")
    assert single.path == again.path
    one, other = read(tmp_path / "whole"), read(tmp_path / "single")
    assert one.entries == other.entries == steps(0, 12)
    assert one.chain == other.chain
    assert [start.position for start in other.starts] == [(0, 0), (1, 1)]
    assert other.starts[1].config == {"fit": {"epochs": 3}}  # written once
    assert (tmp_path / "single" / "receipt.jsonl").read_bytes().count(b'"config":{') == 1


def test_a_restart_keeps_the_checkpoint_it_began_from_though_its_line_came_late(tmp_path):
    receipt = write(tmp_path / "run", steps(0, 4), steps(4, 6))
    for name in ("epoch-000001", "epoch-000001-step-00000002"):
        receipt.take({"kind": "receipt-checkpoint", "name": name, "digest": "d"})
    write(tmp_path / "run", steps(4, 6), position=(1, 0))
    found = read(tmp_path / "run")
    assert found.checkpoints == {"epoch-000001": "d"}
    assert found.entries == [replace(each, mark=each.mark if each == steps(0, 6)[-1] else None) for each in steps(0, 6)]


def test_a_start_names_the_checkpoint_that_it_continues(tmp_path):
    receipt = ReceiptFile(tmp_path, write_atomic)
    receipt.cut((2, 0), [])
    receipt.take(
        {"kind": "receipt-start", "epoch": 2, "step": 0, **OWN, "origin": ("epoch-000002", "d")}, lambda: CONFIG
    )
    assert read(tmp_path).checkpoints == {"epoch-000002": "d"}


def test_a_record_that_is_not_finite_is_refused(tmp_path):
    write(tmp_path / "run", [replace(entry(0, 0), norm=float("inf"))])
    with pytest.raises(FormatError, match="line 2: expected finite numbers"):
        read(tmp_path / "run")


def test_the_end_holds_the_scores_and_the_best_weights(tmp_path):
    write(tmp_path / "run", steps(0, 4)).end(b'{"all_scores": {"test": {"loss": 1.5}}, "stopped_early": {}}', "b")
    found = read(tmp_path / "run")
    assert (found.scores, found.best, found.stopped_early) == ({"all_scores": {"test": {"loss": 1.5}}}, "b", True)


def test_ranks_on_other_processors_are_told():
    one, other = ({"cpu": cpu, "threads": 1, "packages": {}} for cpu in ("A", "B"))
    facts = facts_of_ranks([one, one, other, other])
    assert facts == {**one, "others": [other]}
    assert facts_of_ranks([one, one]) == one
    assert differing_facts(facts, one) == ["cpu: B there, A here"]


def test_a_start_from_the_beginning_begins_the_receipt_again(tmp_path):
    write(tmp_path / "run", *by_marks(steps(0, 5)))
    write(tmp_path / "run", *by_marks(steps(0, 3)))
    assert len(read(tmp_path / "run").starts) == 1
    assert read(tmp_path / "run").entries == steps(0, 3)


def test_a_group_that_a_checkpoint_divides_loses_its_last_entries_and_later_metrics(tmp_path):
    receipt = write(tmp_path / "run")
    receipt.add_metrics('{"epoch": 0}\n')
    receipt.add_metrics('{"epoch": 1}\n')
    receipt.take(record(*(entry(0, number) for number in range(4))))
    write(tmp_path / "run", position=(0, 2))
    assert [each.position for each in read(tmp_path / "run").entries] == [(0, 0), (0, 1)]
    assert read(tmp_path / "run").metrics == []


def test_records_of_a_killed_driver_are_written_once(tmp_path):
    write(tmp_path / "run", *by_marks(steps(0, 4)))
    again = ReceiptFile(tmp_path / "run", write_atomic)
    again.cut((1, 2), [])
    for _ in range(2):
        again.make_up(record(*steps(2, 7)))
    again.take({"kind": "receipt-start", "epoch": 1, "step": 2, **OWN}, lambda: CONFIG)
    positions = [each.position for each in read(tmp_path / "run").entries]
    assert positions == [divmod(number, NUM_STEPS) for number in range(6)]


@pytest.mark.parametrize("change", ["a value", "a line removed", "a line repeated", "two lines exchanged"])
def test_any_change_of_a_line_breaks_the_chain(tmp_path, change):
    write(tmp_path / "run", *by_marks(steps(0, 12))).end(b"{}")
    lines = lines_of(tmp_path / "run")
    if change == "a value":
        lines[2] = lines[2].replace(b"0.5", b"0.6", 1)
    elif change == "a line removed":
        del lines[2]
    elif change == "a line repeated":
        lines.insert(2, lines[2])
    else:
        lines[2], lines[3] = lines[3], lines[2]
    with pytest.raises(FormatError, match=r"receipt, line [345]: expected"):
        read_receipt(lines, "receipt")


def test_a_broken_chain_is_not_continued(tmp_path):
    write(tmp_path / "run", *by_marks(steps(0, 12)))
    path = tmp_path / "run" / "receipt.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6", 1))
    with pytest.raises(FormatError, match="move the file away"):
        write(tmp_path / "run", position=(2, 0))


def test_damage_is_one_line():
    for lines in ([b"{"], [b"[]"], [b'{"before": "", "kind": "steps"}'], [b'{"before": "", "kind": "what"}'], []):
        with pytest.raises(FormatError, match="receipt"):
            read_receipt(lines, "receipt")


def test_a_digest_tells_every_bit():
    tensor = torch.arange(6.0).reshape(2, 3)
    before = tensor_digests([tensor, torch.zeros(2)])
    assert before == tensor_digests(
        [tensor.t().contiguous().t(), torch.zeros(2)]
    )  # the layout in memory does not matter
    assert before != tensor_digests([tensor, -torch.zeros(2)])
    changed = tensor.clone()
    changed.view(torch.int32)[1, 2] ^= 1
    after = tensor_digests([changed, torch.zeros(2)])
    assert (before.of(0) != after.of(0), before.of(1) == after.of(1)) == (True, True)
    assert before.norm == float(np.sqrt(np.square(np.arange(6.0)).sum()))
    tensor_digests([torch.zeros(0), torch.tensor(3), torch.ones(2, dtype=torch.bfloat16), torch.tensor(True)])


def test_ids_of_a_batch_survive_the_sum_over_ranks():
    class Batch:
        node_id = torch.arange(5)

    def ids(_: Batch) -> torch.Tensor:
        return torch.arange(3)

    number = batch_number(Batch(), ids, (5, 7))
    assert int(float(number)) == number < 1 << 48
    assert number != batch_number(Batch(), ids, (5, 8))
    Batch.node_id = torch.arange(5).flip(0)
    assert number != batch_number(Batch(), ids, (5, 7))
    assert batch_number(object(), ids, (5, 7)) != number  # a batch of one's own kind
    assert step_ids([float(number), 0.0]) != step_ids([0.0, float(number)])


def test_the_number_of_records_is_bounded():
    counts = {
        total: sum(done % distance(done) == 0 for done in range(1, total + 1)) for total in (4096, 10_000, 100_000)
    }
    assert counts == {4096: 4096, 10_000: 6596, 100_000: pytest.approx(4096 + 2048 * np.log2(100_000 / 4096), rel=0.03)}


def test_ten_thousand_steps_take_at_most_two_megabytes(tmp_path):
    """A model of 300 tensors, steps with floats of full length."""
    model = nn.ModuleList([nn.Linear(2, 2) for _ in range(150)])
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    receipt = write(tmp_path / "run")
    receipts = StepReceipts(model, 0, receipt.take)
    receipts.num_steps = 10
    for number in range(10_000):
        epoch, step = divmod(number, 10)
        if step == 0:
            receipt.add_metrics('{"epoch": 0}\n')
        if receipts.is_recorded(epoch, step):
            receipts.add(Entry(epoch, step, "0123456789ab", 1 / 3, 2 / 3), receipts.gradients(epoch, step))
    receipts.flush()
    assert len(read(tmp_path / "run").entries) == 6596
    assert receipt.path.stat().st_size < 2e6
    assert len(json.loads(lines_of(tmp_path / "run")[1])["mark"]["weights"]["each"]) == 6 * 300
