"""Runs the code of the guides as printed."""

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import nbformat
import numpy as np
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient

from graphmill.storage.snapshots.snapshots import has_graph
from tests.raw_layouts import write_set

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.ray
@pytest.mark.long
def test_a_model_of_one_s_own_is_a_job(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "guides" / "your_model.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_sage.py").write_text(code)
    options = ["--data.nodes", "2000", "--fit.epochs", "12", "--workers", "1", "--ray.object_store_gb", "0.2"]
    job = str(REPOSITORY / "jobs" / "train_nodes.py")
    done = subprocess.run(
        [sys.executable, job, "--model", "my_sage:MeanSAGE", *options, "--run.dir", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["beats_baselines"]
    assert (tmp_path / "run" / "report.html").exists()


def blocks(guide: str, language: str) -> list[str]:
    text = (REPOSITORY / "docs" / "guides" / guide).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_code(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a guide's code and its checks twice, because a reader may try again in the same folder."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            break
    return done


def printed_python() -> Iterator[tuple[Path, str]]:
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        for code in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
            yield path, code
    for path in sorted((REPOSITORY / "docs").rglob("*.ipynb")):
        cells = nbformat.read(path, 4).cells
        yield path, "\n".join(cell.source for cell in cells if cell.cell_type == "code")


def test_what_the_documents_import_of_ours_is_there() -> None:
    imported = 0
    for path, code in printed_python():
        for node in ast.walk(ast.parse(code)):
            if not isinstance(node, ast.ImportFrom) or not node.module or node.module.split(".")[0] != "graphmill":
                continue
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                file = REPOSITORY / node.module.replace(".", "/") / f"{name}.py"
                assert hasattr(module, name) or file.exists(), f"{path.name}: {node.module} has no {name}"
                imported += 1
    assert imported


def test_options_from_python() -> None:
    code = next(code for code in blocks("options.md", "python") if "cora" in code)
    exec(code, {})


@pytest.mark.long
def test_a_sampler_of_one_s_own_repeats_and_balances(tmp_path: Path) -> None:
    code = "".join(blocks("your_sampler.md", "python"))
    check = """
counts = np.bincount(classes.numpy())
assert set(counts[counts > 0].tolist()) <= {1, 2} and (counts == 2).sum() > 20, counts
ingest(SyntheticGraph(SyntheticOptions(num_nodes=2000)), "other", IngestOptions(num_partitions=3, overwrite=True))
other = BalancedSampler(local_router(open_graph("other")), BalancedOptions())
ours, theirs = sampler.sample(1, 3), other.sample(1, 3)
assert ours.node_id.tolist() == theirs.node_id.tolist()
assert ours.indices.tolist() == theirs.indices.tolist()
assert ours.node_id.tolist() != sampler.sample(1, 4).node_id.tolist()
"""
    done = run_code(code + check, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.long
def test_a_graph_of_one_s_own_is_ingested_from_python(tmp_path: Path) -> None:
    (code,) = blocks("your_graph.md", "python")
    check = """
other = open_graph("from_pyg")
other.verify()
assert other.manifest.num_nodes == graph.manifest.num_nodes == 300
assert graph.manifest.num_edges > other.manifest.num_edges
"""
    done = run_code(code + check, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.ray
def run_shell(commands: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_links_of_one_s_own_edges(tmp_path: Path) -> None:
    """Runs the guide's commands and code unchanged, in a folder with the files that the guide names."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 6, 300)
    np.save(tmp_path / "x.npy", (np.eye(6)[group] + rng.normal(size=(300, 6))).astype(np.float32))
    edges = np.unique(np.sort(rng.integers(0, 300, (9000, 2))), axis=0)
    edges = edges[(group[edges[:, 0]] == group[edges[:, 1]]) & (edges[:, 0] < edges[:, 1])]
    (tmp_path / "edges.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in edges))
    (tmp_path / "jobs").symlink_to(REPOSITORY / "jobs")
    (commands,) = blocks("links.md", "bash")
    run_shell(commands, tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    # A model that knows only a node's group of 50 nodes scores (1 + 1/2 + … + 1/50) / 50 = 0.09.
    assert json.loads((run / "summary.json").read_text())["scores"]["test"] > 0.1
    assert list((run / "best_links").glob("part-*.parquet"))
    check = "assert run.summary['all_scores']['test']['mrr'] > 0.15"
    (code,) = blocks("links.md", "python")
    done = run_code(code + check, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.ray
@pytest.mark.long
def test_a_knowledge_graph(tmp_path: Path) -> None:
    """Runs the guide's commands and code unchanged.

    The best new neighbors live in the same town more often than by chance (one in eight).
    """
    (tmp_path / "jobs").symlink_to(REPOSITORY / "jobs")
    (commands,) = blocks("knowledge_graphs.md", "bash")
    run_shell(commands, tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    told = json.loads((run / "summary.json").read_text())
    assert told["scores"]["test"] > 1.2 * told["baselines"]["common_neighbors"]["test"]
    rows = pq.read_table(run / "neighbors").to_pylist()
    number = {row["id"]: int(row["id"].split()[1]) % 8 for row in rows}
    same = [number[row["id"]] == number[end] for row in rows for end in row["destination"]]
    assert sum(same) > len(same) / 4
    (code,) = blocks("knowledge_graphs.md", "python")
    done = run_code(code, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.ray
@pytest.mark.long
def test_a_recommender(tmp_path: Path) -> None:
    """Runs the guide's commands and code unchanged, with users and items of six tastes."""
    rng = np.random.default_rng(0)
    taste = rng.integers(0, 6, 300)  # tastes of 200 users, then of 100 items
    names = [f"user{i}" for i in range(200)] + [f"item{i}" for i in range(100)]
    np.save(tmp_path / "x.npy", (np.eye(6)[taste] + rng.normal(size=(300, 6))).astype(np.float32))
    (tmp_path / "nodes.csv").write_text("id\n" + "\n".join(names) + "\n")
    plays = np.unique(np.stack([rng.integers(0, 200, 12000), rng.integers(200, 300, 12000)], axis=1), axis=0)
    plays = plays[(taste[plays[:, 0]] == taste[plays[:, 1]]) & (rng.random(len(plays)) < 0.7)]
    (tmp_path / "plays.csv").write_text("user,item\n" + "".join(f"{names[a]},{names[b]}\n" for a, b in plays))
    (tmp_path / "jobs").symlink_to(REPOSITORY / "jobs")
    run_shell("".join(blocks("recommender.md", "bash")), tmp_path)
    tastes = dict(zip(names, taste.tolist(), strict=True))
    check = f"""
taste = {tastes}
same = [taste[name] == taste[one] for name, some in recommended.items() if name.startswith("user") for one in some[:3]]
assert sum(same) > 0.3 * len(same) > 0, (sum(same), len(same))
like = [taste[one] == taste["item3"] for one in items[np.argsort(-nearness)[1:6]]]
assert sum(like) >= 2, like
"""
    done = run_code("".join(blocks("recommender.md", "python")) + check, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.long
def test_a_trained_model_in_a_program(tmp_path: Path) -> None:
    check = """
assert logits.shape[0] == 50 and states.shape[0] == 2 and weights[0].shape[2:] == (50, 50)
assert torch.allclose(torch.export.load("model.pt2").module()(x, edge_index), model(x, edge_index), atol=1e-6)
assert scores["test"]["accuracy"] == run.scores["test"]
"""
    done = run_code("".join(blocks("predict.md", "python")) + check, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    (tuning,) = (code for code in blocks("options.md", "python") if "fresh_head" in code)
    done = run_code(tuning, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.long
def test_a_graph_with_time(tmp_path: Path) -> None:
    """Runs the guide's commands and code unchanged, in a folder with the files that the guide names."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 300)
    np.save(tmp_path / "x.npy", (3 * np.eye(3)[label] + rng.normal(size=(300, 3))).astype(np.float32))
    np.save(tmp_path / "y.npy", label)
    np.save(tmp_path / "times.npy", rng.integers(0, 100, 300))
    rows = zip(rng.integers(0, 300, 3000), rng.integers(0, 300, 3000), rng.integers(0, 100, 3000), strict=True)
    (tmp_path / "edges.csv").write_text("src,dst,when\n" + "".join(f"{a},{b},{t}\n" for a, b, t in rows))
    (tmp_path / "jobs").symlink_to(REPOSITORY / "jobs")
    commands = "".join(blocks("time.md", "bash"))
    run_shell(commands, tmp_path)
    of_links, of_nodes = sorted((tmp_path / "runs").iterdir())
    assert json.loads((of_nodes / "summary.json").read_text())["scores"]["test"] > 0.6
    assert json.loads((of_links / "summary.json").read_text())["scores"]["test"] > 0.02
    (code,) = blocks("time.md", "python")
    done = run_code(code, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.long
def test_pygs_graph_models_and_encodings(tmp_path: Path) -> None:
    code = "".join(blocks("from_pyg.md", "python"))
    check = """
from dataclasses import replace

from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE

assert sum(losses[-4:]) < 0.8 * sum(losses[:4]), losses
assert right[back.test_mask].float().mean() > 0.6
assert OfPyG(4, 4)(replace(batch, y=None)).shape == (len(batch.root_index), 4)
assert sorted({len(sampler.roots_of(0, one)) for one in range(sampler.num_batches)}) == [50]
theirs = AddLaplacianEigenvectorPE(4, is_undirected=True)(AddRandomWalkPE(8)(data))
row = part.n_id
assert torch.allclose(part["rwse-8"], theirs.random_walk_pe[row], atol=1e-5)
ours, theirs = part["laplacian-5-smallest"][:, 1:], theirs.laplacian_eigenvector_pe[row]
assert torch.allclose(ours.abs(), theirs.abs(), atol=1e-4)
try:
    pyg_graph(data.to_heterogeneous())
except ValueError as error:
    assert "homogeneous" in str(error)
else:
    raise AssertionError
"""
    done = run_code(code + check, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.ray
@pytest.mark.long
def test_the_readmes_python(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    check = "assert len(predictions) == graph.num_nodes == 5000; assert len(batch.root_index) == len(sampler.roots_of(0, 0))"
    done = run_code(f"if __name__ == '__main__':\n{textwrap.indent(code + check, '    ')}", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.ray
@pytest.mark.long
def test_the_notebook_runs_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    notebook = nbformat.read(REPOSITORY / "docs" / "guides" / "notebook.ipynb", 4)
    for _ in range(2):
        done = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in done.cells for output in cell.get("outputs", ()))
    assert re.search(r"test accuracy (0\.\d+) as in the run: \1\n", said), said
    assert "ipywidgets'" not in said
    assert "training:" not in said  # in a notebook, each update replaces the line of progress
    shown = [output["data"] for cell in done.cells for output in cell.get("outputs", ()) if "data" in output]
    lines = [data["text/plain"] for data in shown if "training" in data.get("text/plain", "")]
    assert [re.match(r"training: 30/30 epochs; loss ", line) is not None for line in lines] == [True]
    assert any("<iframe srcdoc=" in data.get("text/html", "") for data in shown)


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(REPOSITORY / "docs" / "guides" / "notebook.ipynb", 4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


def test_dgls_graph_and_model(tmp_path: Path) -> None:
    code = "".join(blocks("from_dgl.md", "python"))
    compile(code, "from_dgl.md", "exec")
    check = """
assert sum(losses[-4:]) < 0.8 * sum(losses[:4]), losses
whole = to_dgl(batch)
assert whole.ndata["is_root"].sum() == len(batch.root_index) == blocks[-1].num_dst_nodes()
assert set(blocks[1].edata) == set(blocks[0].edata)
assert sorted({len(sampler.roots_of(0, one)) for one in range(sampler.num_batches)}) == [50]
outer, inner = (set(zip(*(end.tolist() for end in block.edges()))) for block in blocks)
assert inner < outer
"""
    done = run_code(code + check, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.ray
@pytest.mark.long
def test_a_graph_of_one_s_own_is_ingested_from_files_and_trained_on(tmp_path: Path) -> None:
    """Runs the guide's commands unchanged, in a folder with the files that the guide names."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 300)
    np.save(tmp_path / "x.npy", (3 * np.eye(3)[label] + rng.normal(size=(300, 3))).astype(np.float32))
    np.save(tmp_path / "y.npy", label)
    np.save(tmp_path / "split.npy", np.repeat([1, 2, 3], 100).astype(np.int8))
    edges = rng.integers(0, 300, (2400, 2))
    (tmp_path / "edges.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in edges if a != b))
    (tmp_path / "users.csv").write_text("id\nann\n007\nZoë\n")
    np.save(tmp_path / "user_x.npy", np.eye(3, dtype=np.float32))
    (tmp_path / "follows.csv").write_text("src,dst,stars,days\nann,007,5,1\nZoë,ann,2.5,8\n")
    (tmp_path / "molecules.csv").write_text("smiles,gap\nCCO,1.5\nC1CC1,2.5\nc1ccccc1,0.5\n")
    write_set("yelp", tmp_path / "data" / "sets")
    (tmp_path / "jobs").symlink_to(REPOSITORY / "jobs")
    commands = "".join(blocks("your_graph.md", "bash")).splitlines()
    for command in commands * 2:
        program, *words = shlex.split(command)
        assert program == "python"
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, command + "\n" + done.stdout[-1000:] + done.stderr[-1000:]
        assert "Traceback" not in done.stderr
    assert len(list(tmp_path.glob("runs/products_geco-*/report.html"))) == 2
    assert has_graph(str(tmp_path / "graphs" / "molecules"))


@pytest.mark.long
def test_typed_batches_train_pyg_s_models_and_ours(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    check = """
assert logits.shape == (sampler.sample(epoch=0, batch=0).num_roots, 3)
assert net(part.x_dict, part.edge_index_dict)["paper"].shape == (part["paper"].num_nodes, 3)
ingest(typed_pyg_graph(data), "other", IngestOptions(num_partitions=4, undirected=True, overwrite=True))
other = NeighborSampler(typed_router(open_graph("other")), options).sample(epoch=0, batch=1)
ours = sampler.sample(epoch=0, batch=1)
for relation in graph.relations:
    assert other.edges[relation].indices.tolist() == ours.edges[relation].indices.tolist()
"""
    done = run_code("".join(blocks("typed.md", "python")) + check, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
