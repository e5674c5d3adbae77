"""Saves a run's best weights as a model for other users: one folder, in the file layout of the Hugging Face Hub.

    model.safetensors   the weights
    config.json         the run's options, and the properties of the data that the model depends on
    summary.json        scores, and the data's content
    state.json          the weights' identity, and every file's SHA-256
    README.md           the model card, for people; may be edited

The folder can be used in place of a run's directory: `predict`, `evaluate`, `--fit.start_from` and `load_model` accept it.
"""

import json
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphmill.cluster.checkpoints.checkpoint import write_digests
from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs.config.config import config_tree, read_config, read_saved
from graphmill.jobs.config.reader import shown
from graphmill.jobs.config.registry import KINDS
from graphmill.jobs.records.run_record import Run, flat_text
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.object_stores import list_names
from graphmill.storage.filesystem.outputs import check_output, whole_folder

HUB = "hf://"
_OF_A_MACHINE = ("run_dir", "started_in", "traffic", "ranks", "peak_bytes")  # a summary's entries about the machine
_NOT_REPEATED = ("run.", "ray.", "workers.", "servers.", "tracking.", "data.snapshot")
_LATER_ONLY = ("ray", "servers", "format", "resolved")  # groups of options that the card leaves out


def save_model(run: Run, path: str | Path) -> None:
    """Writes a new folder at this path, or uploads it to `hf://owner/name` of the Hub. The Hub's client uses its own log-in.

    Raises FormatError if the run's weights are missing or damaged, ConfigError if the path already exists with other content.
    """
    _ = run.state, run.summary["job"]
    if str(path).startswith(HUB):
        client, name = _client(), str(path).removeprefix(HUB)
        with one_line_errors(str(path), "upload the model", ConfigError), tempfile.TemporaryDirectory() as scratch:
            _write(run, Path(scratch))
            client.create_repo(name, exist_ok=True)
            client.upload_folder(repo_id=name, folder_path=scratch)
        return
    check_output(path, "a saved model", list_names, advice="choose another path")
    with one_line_errors(str(path), "write the model", ConfigError), whole_folder(Path(path)) as folder:
        _write(run, folder)


def at_hand(path: str | Path) -> str:
    """A local path of the model: the path itself or, for `hf://owner/name` (optionally with `@revision`), the Hub client's copy on this machine."""
    if not str(path).startswith(HUB):
        return str(path)
    name, _, revision = str(path).removeprefix(HUB).partition("@")
    try:
        return str(_client().snapshot_download(name, revision=revision or None))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected a model on the Hub, got {str(error).splitlines()[0]}") from None


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ConfigError("hf://: expected the Hub's client, found none; pip install 'graphmill[hub]'") from None
    return huggingface_hub


def _write(run: Run, folder: Path) -> None:
    # --run.parallel is kept because it determines the numbers. Paths and a cluster's address are left out because they belong to this machine.
    options = {name: group for name, group in run.config.items() if name != "ray"}
    options["run"] = {name: value for name, value in run.config.get("run", {}).items() if name == "parallel"}
    summary = {name: value for name, value in run.summary.items() if name not in _OF_A_MACHINE}
    with run.place.at_hand(*run.best_files) as place:
        best = place / run.best
        for source in (best / "model.safetensors", *best.glob("table-*.ids.npy"), *best.glob("table-*.best.npy")):
            (folder / source.name).write_bytes(source.read_bytes())
        (folder / "config.json").write_text(json.dumps(options, indent=1) + "\n")
        (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        write_digests(folder, best)
    (folder / "README.md").write_text(model_card(run))


def model_card(run: Run) -> str:
    """The model card: data, scores and options, and the commands that use the model and train it again."""
    summary, config = run.summary, run.config
    data = summary.get("graphs" if run.is_graph_set else "graph")
    scores = [f"| model{' (estimate)' if run.estimate else ''} | {_cells(run.scores)} |"]
    scores += [
        f"| {name} | {_cells(baseline_scores)} |"
        for name, baseline_scores in (summary.get("baselines") or {}).items()
        if baseline_scores
    ]
    options = flat_text({name: value for name, value in config.items() if name not in _LATER_ONLY})
    model = config.get("model", {})
    allow = ", allow_import=True" if ":" in str(model) else ""  # the class must be imported from its path
    return "\n".join(
        [
            "---",
            "library_name: graphmill",
            "tags:\n- graphs",
            "---",
            f"# {model.get('name', model) if isinstance(model, Mapping) else model}, {run.name}",
            "",
            f"Trained by [Graphmill](https://pypi.org/project/graphmill/) on `{Path(str(data)).name}` (content {run.data_hash[:12]}).",
            f"{summary.get('num_parameters', 0):,} parameters, {summary.get('epochs', 0)} epochs.",
            "",
            f'```python\nimport graphmill as gm\n\nmodel = gm.load_model("PATH"{allow})\nrows = model(x, edge_index)\n```',
            "",
            f"## Scores\n\n| {run.metric} | valid | test |\n|---|---|---|",
            *scores,
            "",
            f"## Repeat it\n\n```\n{repeating(run)}\n```",
            "",
            "## Options\n\n| option | value |\n|---|---|",
            *(
                f"| {name} | {value.replace('|', '¦')} |"
                for name, value in options.items()
                if not name.startswith("run.")
            ),
            "",
        ]
    )


def repeating(run: Run) -> str:
    """The command that trains the same model. It lists the options that differ from their defaults."""
    config = read_saved(run.path, "give a finished run's directory", allow_import=True)
    names = {group: getattr(config, group).name for group in ("model", "sampler", "task")}
    usual = read_config(config_tree(config.kind, names)).options()
    values = config.options()
    values["data.path"] = run.data_url
    job = "train_links" if config.links else f"train_{config.kind}" if config.kind in KINDS else "train"
    words = ["graphmill", job, *(["--kind", config.kind] if config.kind not in KINDS else [])]
    for name, value in (names | {name: value for name, value in values.items() if name not in names}).items():
        if not name.startswith(_NOT_REPEATED) and (name in names or usual.get(name) != value):
            words += [f"--{name}", *shlex.split(shown(value))]
    return shlex.join(words)


def _cells(scores: Mapping[str, Any]) -> str:
    return " | ".join(f"{scores[split]:.4g}" if split in scores else "" for split in ("valid", "test"))
