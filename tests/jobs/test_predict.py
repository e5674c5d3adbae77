"""Tests predictions of finished runs: scores equal the run's scores to the last digit, files are complete and ordered, and bad input is refused with one
line."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save, save_file

from graphmill.cluster.data.graph_set_data import GraphData, GraphSplitOptions
from graphmill.cluster.data.training_data import OpenNodes
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.prediction.prediction import split_scores
from graphmill.cluster.prediction.predictor import (
    UNSPLIT,
    Piece,
    PredictionSpec,
    Predictor,
    SplitPlan,
    plan_pieces,
    with_unsplit,
)
from graphmill.cluster.tasks import BinaryClassification, Classification, Regression
from graphmill.cluster.training.evaluation import deal_split
from graphmill.cluster.training.train_loop import Worker
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.core.errors import ConfigError, DataError, FormatError, GraphmillError
from graphmill.jobs import predict
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.records.run_record import read_run
from graphmill.jobs.resolve.resolve import ResolvedRun
from graphmill.jobs.subjects.nodes import spreads_graph
from graphmill.jobs.subjects.subject import open_prediction
from graphmill.jobs.tasks.model_inputs import GECOClassifier
from graphmill.models.geco.options import GECOConfig
from graphmill.samplers.access.router import local_router
from graphmill.samplers.vocabulary.options import GraphBatchOptions, LoaderOptions, NeighborOptions, full_evaluation
from graphmill.storage.format.source import SPLIT_NAMES
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.predictions import PIECES, SUMMARY, PredictionFolder
from graphmill.storage.snapshots.prune import prune
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests import runs
from tests.listed_graph import ListedGraph
from tests.predictions import call, go_on_after_an_interruption, predictions_of, scores_of
from tests.recording_reporter import MemoryRecorder

pytest.importorskip("rdkit")


@pytest.fixture(scope="module")
def molecules(tmp_path_factory):
    from graphmill.cluster.ingestion.molecules import ingest_molecules
    from graphmill.storage.graph_sets.graph_set import open_graphs
    from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules

    url = str(tmp_path_factory.mktemp("molecules") / "set")
    ingest_molecules(EnumeratedMolecules(120), url)
    return open_graphs(url)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("graph") / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=300)), url, IngestOptions(num_partitions=1))
    return open_graph(url)


class LocalNodes:
    """A graph in this process, opened as a worker would open it."""

    def __init__(self, graph) -> None:
        self._router = local_router(graph)

    def open(self) -> OpenNodes:
        return OpenNodes(self._router)


def make(spec: PredictionSpec, url: Path, ids: np.ndarray, shard_rows: int, most: int = 2):
    """Does the work of all workers in this process. Returns the table of predictions from the folder, and the scores."""
    folder = PredictionFolder(str(url))
    folder.begin({})
    predictor = Predictor(spec, folder, np.sort(ids)[::shard_rows], "cpu")
    opened = spec.data.open()
    dealt = [deal_split(opened, split.sampler, split.micro_batches, split.num_positions) for split in spec.splits]
    pieces = plan_pieces([sampler.num_batches for sampler, _ in dealt], most)
    for piece in reversed(pieces):
        predictor.predict(piece)
    scores = split_scores(folder, spec, pieces)
    for index in range(-(-len(ids) // shard_rows)):
        predictor.join(index, pieces)
    return predictions_of(url), scores


def spec_of(training: TrainSpec, splits: tuple[SplitPlan, ...], **changes) -> PredictionSpec:
    torch.manual_seed(3)
    weights = training.build_model().state_dict()
    common = {
        "data": training.data,
        "build_model": training.build_model,
        "weights": save({name: tensor.contiguous() for name, tensor in weights.items()}),
        "task": training.task,
        "target_names": ("y",),
        "has_targets": True,
        "splits": splits,
        "embeddings": True,
        "precision": "float32",
        "seed": 0,
        "loader": LoaderOptions(),
    }
    return PredictionSpec(**{**common, **changes})


def scored_by_trainer(training: TrainSpec) -> dict[str, float]:
    """The scores of the test split from the trainer's evaluation with one rank."""
    worker = Worker(training, MemoryRecorder(), 0, 1, torch.device("cpu"))
    torch.manual_seed(3)
    worker.model.load_state_dict(training.build_model().state_dict())
    with worker.loader(training.evaluation["test"]) as loader:
        return worker._evaluate(worker.model, loader, "test")["test"].compute()


def training_of(data, build_model, task, evaluation) -> TrainSpec:
    return TrainSpec(
        data=data,
        build_model=build_model,
        task=task,
        model_config={},
        identity={},
        sampler=None,
        evaluation=evaluation,
        options=TrainOptions(),
        loader=LoaderOptions(),
    )


def test_pieces_cover_every_batch_once():
    pieces = plan_pieces([1, 40, 0, 7], 4)
    covered = [(piece.split, batch) for piece in pieces for batch in range(piece.start, piece.stop)]
    assert covered == [(split, batch) for split, count in enumerate((1, 40, 0, 7)) for batch in range(count)]
    assert max(piece.stop - piece.start for piece in pieces) == 4
    assert len({piece.name for piece in pieces}) == len(pieces)


@pytest.mark.parametrize("kind", ["regression", "binary", "classes"])
def test_molecules_are_predicted_as_they_are_scored(kind, molecules, tmp_path):
    tasks = {
        "regression": Regression((1.5,), (0.7,)),
        "binary": BinaryClassification(1),
        "classes": Classification(3),
    }
    task = tasks[kind]
    target = molecules.target.copy()
    if kind != "regression":
        target = np.floor(np.abs(target)) % task_classes(kind)
    target[molecules.split("test")[1]] = np.nan
    store = Retargeted(molecules, target)
    model = grit(molecules, task.out_dim)
    batches = GraphBatchOptions(max_graphs=5, shuffle=False)
    samplers = {split: GraphSplitOptions(split, batches) for split in ("train", "valid", "test")}
    data = GraphData(store, (0,), labels=kind == "classes")
    training = training_of(data, model.build_model, task, samplers)
    spec = spec_of(training, tuple(SplitPlan(name, options, 1, 1) for name, options in samplers.items()))
    table, scores = make(spec, tmp_path / "out", molecules.original_id, shard_rows=50)
    expected = scored_by_trainer(training)
    assert scores["test"] == expected
    assert np.isfinite([value for value in expected.values() if isinstance(value, float)]).all()
    assert table["id"].to_pylist() == molecules.original_id.tolist()
    for split in ("train", "valid", "test"):
        ids = table.filter(pa.compute.equal(table["split"], split))["id"].to_pylist()
        assert ids == molecules.original_id[molecules.split(split)].tolist()
    named = {"regression": "target_y", "binary": "target_y", "classes": "target"}[kind]
    known = table[named].is_valid().to_numpy()
    assert known.tolist() == (~np.isnan(target[:, 0])).tolist()
    assert np.array_equal(table[named].drop_null().to_numpy().astype(np.float32), target[known, 0])
    # The stored states are in the order of the rows: from each state the head computes the row's prediction.
    torch.manual_seed(3)
    head = training.build_model().eval().head
    states = torch.tensor(np.stack(table["embedding"].to_numpy()))
    with torch.no_grad():
        raw = head(states).numpy()
    if kind == "regression":
        shown = ((table["prediction_y"].to_numpy() - 1.5) / 0.7)[:, None]
    else:
        shown = table["logit_y"].to_numpy()[:, None] if kind == "binary" else np.stack(table["logits"].to_numpy())
    assert np.allclose(raw, shown, atol=1e-4)
    assert np.ptp(raw) > 0.05


def task_classes(kind: str) -> int:
    return 2 if kind == "binary" else 3


class Retargeted:
    """A set of graphs with other targets."""

    def __init__(self, store, target) -> None:
        self._store, self.target = store, target

    def __getattr__(self, name):
        return getattr(self._store, name)

    def fetch(self, graphs):
        return replace(self._store.fetch(graphs), target=self.target[graphs].astype(np.float32))


# With 100 chunks, some chunks have no node of a split and therefore no root.
@pytest.mark.parametrize("sampler", ["full", "chunks", "empty chunks", "neighbor"])
def test_nodes_are_predicted_as_they_are_scored_also_those_in_no_split(sampler, graph, tmp_path):
    data, num_classes = LocalNodes(graph), graph.manifest.num_classes
    if sampler == "neighbor":
        codes = enumerate(SPLIT_NAMES)
        own = {name: NeighborOptions((3,), batch_size=20, root_split=code, shuffle=False) for code, name in codes}
        del own[UNSPLIT]
    else:
        own = dict(full_evaluation(0, {"full": 1, "chunks": 3, "empty chunks": 100}[sampler]))
    config = GECOConfig(in_dim=graph.manifest.feature_dim, out_dim=num_classes, width=8, num_layers=1)
    training = training_of(data, lambda: GECOClassifier(config), Classification(num_classes), own)
    samplers = with_unsplit(own)
    router = data.open().router
    members = {name: router.list_split(0, code).original_id for code, name in enumerate(SPLIT_NAMES)}
    splits = tuple(SplitPlan(name, options, 1, 1) for name, options in samplers.items() if len(members[name]))
    spec = spec_of(training, splits, target_names=())
    ids = np.concatenate([members[split.name] for split in splits])
    table, scores = make(spec, tmp_path / "out", ids, shard_rows=128)
    assert scores["test"] == scored_by_trainer(training)
    assert table["id"].to_pylist() == list(range(graph.manifest.num_nodes))
    label = router.fetch(np.arange(graph.manifest.num_nodes), feature=False).label
    original = router.list_partitions([0])
    assert table["target"].to_numpy().tolist() == label[original.node].tolist()
    test = table.filter(pa.compute.equal(table["split"], "test"))
    assert test["id"].to_pylist() == members["test"].tolist()
    right = pa.compute.mean(pa.compute.equal(test["prediction"], test["target"])).as_py()
    assert right == scores["test"]["accuracy"]
    torch.manual_seed(3)
    with torch.no_grad():
        head = training.build_model().head(torch.tensor(np.stack(table["embedding"].to_numpy())))
    assert np.allclose(head.numpy(), np.stack(table["logits"].to_numpy()), atol=1e-5)


def test_a_prediction_that_is_not_finite_is_an_error(molecules, tmp_path):
    options = GraphSplitOptions("test", GraphBatchOptions(max_graphs=5, shuffle=False))
    training = training_of(GraphData(molecules, (0,)), grit(molecules, 1).build_model, Regression(), {})
    spec = spec_of(training, (SplitPlan("test", options, 1, 1),))
    state = training.build_model().state_dict()
    weights = {name: t + float("nan") if t.is_floating_point() else t for name, t in state.items()}
    predictor = Predictor(
        replace(spec, weights=save(weights)), PredictionFolder(str(tmp_path)), np.zeros(1, int), "cpu"
    )
    with pytest.raises(DataError, match=r"split test, batch 0: the prediction for id .* is not finite"):
        predictor.predict(Piece(0, 0, 1))
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.fixture(scope="module")
def other_graph(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("other") / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=200, seed=5)), url, IngestOptions(num_partitions=1))
    return open_graph(url)


def grit(molecules, out_dim: int, *words: object) -> ResolvedRun:
    """A small GRIT over these molecules."""
    return runs.set_run(
        molecules.manifest, out_dim, "--model", "grit", "--model.width", 16, "--model.num_layers", 1, *words
    )


def saved_run(run: Path, graph) -> Path:
    """Writes the files that prediction reads from a finished run of products_geco."""
    resolved = runs.node_run(graph, "--data", graph.url, "--model.width", 8, "--model.num_layers", 1)
    (run / "best").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(resolved.tree()))
    save_file(resolved.build_model().state_dict(), run / "best" / "model.safetensors")
    state = {"next_epoch": 1, "best_epoch": 0, "best_score": 0.5, "identity": {}}
    state |= {"format": "graphmill-checkpoint", "format_version": 1, "model_config": resolved.architecture}
    (run / "best" / "state.json").write_text(json.dumps(state))
    summary = {"job": "products_geco", "workers": 2, "device": "cpu", "scores": {"test": 0.5}}
    summary |= {"graph": graph.url, "graph_hash": graph.manifest.content_hash, "snapshot": graph.manifest.snapshot}
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def test_another_graph_is_taken_only_when_it_is_meant(graph, other_graph, tmp_path):
    run = read_run(str(saved_run(tmp_path / "run", graph)), finished=True)
    with pytest.raises(ConfigError, match="pass --other-graph"):
        open_prediction(run, PredictConfig("run", "out", graph=other_graph.url))
    found = open_prediction(run, PredictConfig("run", "out", graph=other_graph.url, other_graph=True))
    assert found.content_hash == other_graph.manifest.content_hash
    assert list(found.samplers) == ["train", "valid", "test", UNSPLIT]
    assert isinstance(found.build_model(), GECOClassifier)


def test_a_relative_graph_is_that_of_the_folder_in_which_the_run_was_started(graph, tmp_path, monkeypatch):
    path = saved_run(tmp_path / "run", graph) / "summary.json"
    said = {"graph": Path(graph.url).name, "started_in": str(Path(graph.url).parent)}
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    monkeypatch.chdir(tmp_path)
    subject = open_prediction(read_run("run", finished=True), PredictConfig("run", "out"))
    assert subject.content_hash == graph.manifest.content_hash


def test_a_run_is_predicted_from_the_snapshot_that_it_was_trained_on(tmp_path):
    url = str(tmp_path / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=100)), url, IngestOptions(num_partitions=2))
    first = open_graph(url)
    run = read_run(str(saved_run(tmp_path / "run", first)), finished=True)
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=120)), url, IngestOptions(num_partitions=2, overwrite=True))
    assert open_prediction(run, PredictConfig("run", "out")).content_hash == first.manifest.content_hash
    # If the graph is named by its URL, the newest snapshot is used.
    with pytest.raises(ConfigError, match="pass --other-graph"):
        open_prediction(run, PredictConfig("run", "out", graph=url))
    prune(url, keep=1)
    with pytest.raises(FormatError, match="expected snapshot 1, found 2; it may be pruned"):
        open_prediction(run, PredictConfig("run", "out"))
    shutil.rmtree(url)  # as if the graph were on another host's disk
    with pytest.raises(FormatError, match="expected snapshot 1, found no graph; all hosts that use it must read it"):
        open_prediction(run, PredictConfig("run", "out"))


@pytest.mark.parametrize("odd", ["1", None, True, 1.5, [1]])
def test_a_summary_whose_snapshot_is_no_number_is_refused(graph, tmp_path, odd):
    path = saved_run(tmp_path / "run", graph) / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"snapshot": odd}))
    with pytest.raises(FormatError, match=r"summary\.json: field 'snapshot': expected a snapshot's number, got"):
        read_run(str(tmp_path / "run"), finished=True)


def test_a_run_that_was_continued_must_finish_again(graph, tmp_path):
    path = saved_run(tmp_path / "run", graph)

    def happens(*kinds: str) -> None:
        with open(path / "events.jsonl", "a") as stream:
            stream.writelines(json.dumps({"kind": kind}) + "\n" for kind in kinds)

    happens("begin", "start", "finish")
    read_run(str(path), finished=True)
    happens("begin", "fail")  # the options were refused before any training
    read_run(str(path), finished=True)
    happens("begin", "start", "fail")
    with pytest.raises(FormatError, match="found one that was continued and has not finished again"):
        read_run(str(path), finished=True)
    assert (read_run(str(path)).status, read_run(str(path)).scores) == ("failed", {})


def test_a_setting_that_is_not_known_yet_may_be_any(tmp_path):
    folder = PredictionFolder(str(tmp_path / "out"))
    folder.begin({"device": "cpu", "seed": 1})
    folder.check({"device": None, "seed": 1})
    assert folder.check({"device": "gpu", "seed": 2}) is None  # no predictions exist yet, so other settings are allowed
    (tmp_path / "out" / "part-00000.parquet").write_bytes(b"rows")
    with pytest.raises(ConfigError, match="device: 'cpu' there, 'gpu' here"):
        folder.check({"device": "gpu", "seed": 1})
    with pytest.raises(ConfigError, match="seed: 1 there, 2 here"):
        folder.check({"device": None, "seed": 2})


def test_folders_are_made_where_the_storage_has_them():
    folder = PredictionFolder("memory://deep/in/it")
    folder.write_json("_pieces/one.json", {})
    assert fsspec.filesystem("memory").isdir("/deep/in/it/_pieces")


@pytest.mark.parametrize("split", [[[i % 4] for i in range(60)], None], ids=["split", "not split"])
def test_a_graph_without_labels_is_predicted_whole_too(graph, tmp_path, split):
    url = str(tmp_path / "unlabelled")
    feature = np.random.default_rng(0).normal(size=(60, graph.manifest.feature_dim)).tolist()
    bare = ListedGraph(60, [(i, (7 * i + 1) % 60) for i in range(60)], feature=feature, split=split)
    ingest(bare, url, IngestOptions(num_partitions=2))
    run = read_run(str(saved_run(tmp_path / "run", graph)), finished=True)
    found = open_prediction(run, PredictConfig("run", "out", graph=url, other_graph=True, parallel="graph"))
    shard = found.shared(found.look().data).open()
    sampler = shard.sampler(found.samplers["test" if split else "none"], 1)
    batch = sampler.sample(0, 0)
    assert sorted(shard.ids(batch).tolist()) == list(range(60))  # one pass covers all splits
    codes = shard.split_codes(batch)
    assert codes is None if split is None else codes.tolist() == [i % 4 for i in shard.ids(batch).tolist()]
    assert found.build_model()(batch).shape == (len(batch.root_index), graph.manifest.num_classes)
    assert found.shard_bytes(1) > 0


def test_bad_input_is_one_line_and_writes_nothing(monkeypatch, graph, other_graph, tmp_path, tmp_path_factory):
    node_run = saved_run(tmp_path_factory.mktemp("run") / "run", graph)
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text("{")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "summary.json").write_text("{}")
    out, narrow = str(tmp_path / "out"), str(tmp_path / "narrow")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=100, feature_dim=7)), narrow, IngestOptions(num_partitions=1))
    cases = [
        ([str(tmp_path / "broken"), out], "broken text"),
        ([str(tmp_path / "bare"), out], "expected a training run's summary"),
        ([str(node_run), out, "--graph", other_graph.url], "pass --other-graph"),
        ([str(node_run), out, "--graph", "nowhere"], "nowhere"),
        ([str(node_run), out, "--graph", narrow, "--other-graph"], "the run's model does not fit this data"),
        ([str(node_run), out, "--split", "tset"], "expected all, train, valid, test, none, got 'tset'"),
        ([str(node_run), str(tmp_path / "file")], "expected predictions or nothing there, found a file"),
        ([str(node_run), str(tmp_path / "file" / "out")], "is a file; choose another"),
        ([str(node_run), str(tmp_path / "foreign")], "found other files"),
        ([str(node_run), "memory://out"], "memory:// is not shared"),
        ([str(node_run), "nosuch://out"], "cannot open this kind of URL"),
        ([str(node_run), out, "--shard-rows", "0"], "--shard_rows"),
    ]

    def no_ray(*_: object) -> None:
        raise AssertionError("Ray must not start for bad input")

    monkeypatch.setattr("graphmill.cluster.ray.session.ray_session", no_ray)
    before = {path for path in tmp_path.rglob("*")}
    for arguments, message in cases:
        with pytest.raises(GraphmillError) as caught:
            call(predict.main, monkeypatch, *arguments)
        assert message in str(caught.value), arguments
        assert "\n" not in str(caught.value)
    assert {path for path in tmp_path.rglob("*")} == before


def saved_set_run(run: Path, molecules) -> Path:
    """Writes the files that prediction reads from a finished run on molecules, with the trainer's scores."""
    resolved = grit(molecules, 1, "--data", molecules.url, "--evaluation.max_graphs", 5)
    task = Regression((1.5,), (0.7,))
    splits = {split: GraphSplitOptions(split, resolved.evaluation[split]) for split in ("valid", "test")}
    training = training_of(GraphData(molecules, (0,)), resolved.build_model, task, splits)
    torch.manual_seed(3)
    (run / "best").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(resolved.tree()))
    save_file(training.build_model().state_dict(), run / "best" / "model.safetensors")
    state = {"next_epoch": 1, "best_epoch": 0, "best_score": 0.5, "identity": {"targets": ["logp"]}}
    state |= {"format": "graphmill-checkpoint", "format_version": 1, "model_config": {}}
    (run / "best" / "state.json").write_text(json.dumps(state))
    summary = {"job": "pcqm4m-grit", "workers": 1, "device": "cpu", "task": asdict(task)}
    summary |= {"graphs": molecules.url, "graphs_hash": molecules.manifest.content_hash, "snapshot": 1}
    (run / "summary.json").write_text(json.dumps({**summary, "scores": {"test": scored_by_trainer(training)["mae"]}}))
    return run


def test_an_interrupted_prediction_goes_on_from_its_pieces(molecules, tmp_path, monkeypatch, capsys):
    run, calls = saved_set_run(tmp_path / "run", molecules), []

    def watched(name):
        method = getattr(Predictor, name)

        def call(self, first, *others):
            calls.append((name, first))
            method(self, first, *others)

        monkeypatch.setattr(Predictor, name, call)

    watched("predict")
    watched("join")
    table = go_on_after_an_interruption(run, tmp_path / "out", monkeypatch, capsys)
    assert table["id"].to_pylist() == molecules.original_id.tolist()
    summary = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert summary["scores"]["test"]["mae"] == scores_of(run)["test"]
    predicted = [argument for name, argument in calls if name == "predict"]
    joined = [argument for name, argument in calls if name == "join"]
    assert len(predicted) == len(set(predicted)) + 1  # only the lost piece was predicted twice
    assert joined == [0, 1, 1]


def test_a_part_that_is_lost_later_is_made_again_and_the_callers_random_numbers_stay(molecules, tmp_path, monkeypatch):
    arguments = [str(saved_set_run(tmp_path / "run", molecules)), str(tmp_path / "out"), "--shard-rows", "90"]
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = predict.predict(*arguments[:2], shard_rows=90)
    assert torch.equal(torch.get_rng_state(), before)
    lost, empty = (tmp_path / "out" / f"part-0000{number}.parquet" for number in (0, 1))
    lost.unlink()
    with pytest.raises(
        FormatError, match=rf"expected {len(first)} predictions, found {len(first) - 90}; predict again"
    ):
        PredictionFolder(str(tmp_path / "out")).table()
    empty.write_bytes(b"")
    call(predict.main, monkeypatch, *arguments)
    assert predictions_of(tmp_path / "out").equals(first)


def test_molecules_are_not_predicted_as_one_graph(molecules, tmp_path, monkeypatch):
    run = saved_set_run(tmp_path / "run", molecules)
    with pytest.raises(ConfigError, match="expected a run on one graph"):
        call(predict.main, monkeypatch, str(run), str(tmp_path / "never"), "--parallel", "graph")


def test_what_a_worker_refuses_ends_the_job_and_what_is_finished_stays(molecules, tmp_path, monkeypatch):
    run = saved_set_run(tmp_path / "run", molecules)
    check = Predictor._check_finite

    def fails(self, batch, ids, prediction, split):
        check(self, batch, ids, prediction if split == "train" else prediction * float("nan"), split)

    monkeypatch.setattr(Predictor, "_check_finite", fails)
    with pytest.raises(DataError, match="split valid, batch 0"):
        call(predict.main, monkeypatch, str(run), str(tmp_path / "out"), "--launcher", "process")
    names = {path.name for path in (tmp_path / "out" / PIECES).iterdir()}
    assert names
    assert all(name.startswith("000-") for name in names)
    assert not list((tmp_path / "out").glob("part-*"))
    assert not (tmp_path / "out" / SUMMARY).exists()


def test_a_hyena_is_not_spread_over_workers(tmp_path):
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=60)), str(tmp_path / "graph"), IngestOptions(num_partitions=1))
    words = ("--run.defaults", "recipe", "--model.block", "hyena")
    run = runs.node_run(open_graph(str(tmp_path / "graph")), *words)
    assert not spreads_graph(run, "auto")
    with pytest.raises(ConfigError, match="hyena computes all nodes in one process"):
        spreads_graph(run, "graph")
