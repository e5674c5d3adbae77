"""Graphmill from Python and from the shell: `import graphmill as gm`, and `graphmill COMMAND …`. A name is imported when it is first used.

graph = gm.open_graph("graphs/products")
sampler = gm.samplers.NeighborSampler(gm.router(graph), gm.samplers.NeighborOptions(fanouts=(15, 10, 5)))
run = gm.train(gm.config("--data", "graphs/products", "--fit.epochs", 3))
predictions = gm.predict(run)
"""

import difflib
import sys
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from types import FunctionType
from typing import Any

# The names in graphmill/__init__.pyi, which editors and mypy read, are the same.
_NAMES = {
    "open_graph": "graphmill.storage.graph:open_graph",
    "open_graphs": "graphmill.storage.graph_sets.graph_set:open_graphs",
    "ingest": "graphmill.storage.importers:ingest",
    "ingest_graphs": "graphmill.storage.importers.memory.graph_list:ingest_graphs",
    "IngestOptions": "graphmill.storage.ingestion.ingest:IngestOptions",
    "SplitOptions": "graphmill.storage.splits.split_options:SplitOptions",
    "ArrayGraph": "graphmill.storage.importers.memory.array_graph:ArrayGraph",
    "knowledge_graph": "graphmill.storage.importers.tables.triples:knowledge_graph",
    "router": "graphmill.samplers.access.typed_router:whole_router",
    "typed_router": "graphmill.samplers.access.typed_router:typed_router",
    "RunConfig": "graphmill.jobs.config.config:RunConfig",
    "config": "graphmill.jobs.run.train:config",
    "train": "graphmill.jobs.run.train:train",
    "predict": "graphmill.jobs.predict:predict",
    "evaluate": "graphmill.jobs.run.evaluate:evaluate",
    "audit": "graphmill.jobs.audit:audit",
    "load_model": "graphmill.jobs.run.trained_model:load_model",
    "TrainedModel": "graphmill.jobs.run.trained_model:TrainedModel",
    "read_run": "graphmill.jobs.records.run_record:read_run",
    "verify": "graphmill.jobs.verify:verify",
    "diff": "graphmill.jobs.diff:diff",
}
_PACKAGES = ("models", "samplers")
__all__ = [*_NAMES, *_PACKAGES]  # noqa: PLE0604  # the names that help(graphmill) shows

# The module of each command: `graphmill COMMAND` runs the `main` of this module.
COMMANDS = {
    "train": "graphmill.jobs.train_nodes",  # train_graphs, if the recipe says so
    "train_nodes": "graphmill.jobs.train_nodes",
    "train_graphs": "graphmill.jobs.train_graphs",
    "train_links": "graphmill.jobs.train_links",
    "ingest": "graphmill.jobs.ingest",
    "encode": "graphmill.jobs.encode",
    "inspect_graph": "graphmill.jobs.inspect_graph",
    "predict": "graphmill.jobs.predict",
    "evaluate": "graphmill.jobs.run.evaluate",
    "export_index": "graphmill.jobs.export_index",
    "serve_graph": "graphmill.jobs.serve_graph",
    "sweep": "graphmill.jobs.sweep",
    "reproduce": "graphmill.jobs.reproduce",
    "replay": "graphmill.jobs.replay",
    "runs": "graphmill.jobs.runs",
    "compare": "graphmill.jobs.compare",
    "verify": "graphmill.jobs.verify",
    "export_receipt": "graphmill.jobs.export_receipt",
    "diff": "graphmill.jobs.diff",
    "report": "graphmill.jobs.report",
    "audit": "graphmill.jobs.audit",
    "mcp": "graphmill.jobs.mcp_server",
    "prune": "graphmill.jobs.prune",
    "doctor": "graphmill.jobs.doctor",
    "convert_checkpoint": "graphmill.jobs.convert_checkpoint",
    "completion": "graphmill.jobs.completion",
    "bench": "graphmill.jobs.bench.__main__",
}
_VERSIONS = ("torch", "ray", "pyarrow", "numpy", "numba", "torch_geometric", "dgl")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("graphmill")
    if name in _PACKAGES:
        return import_module(f"graphmill.{name}")
    from graphmill.core.public_names import load_public

    public = load_public(__name__, _NAMES, name, _PACKAGES)
    return _python_call(public) if isinstance(public, FunctionType) else public


@cache
def _python_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a public function: its error messages name Python arguments instead of command-line flags."""

    @wraps(call)
    def called(*values: Any, **said: Any) -> Any:
        from graphmill.core.errors import GraphmillError

        try:
            return call(*values, **said)
        except GraphmillError as error:
            from graphmill.jobs.run.python_words import speak_python

            speak_python(error, call.__name__, values, said)
            raise

    return called


def __dir__() -> list[str]:
    return sorted(__all__)


def _commands() -> str:
    """Usage text: each command with the first line of its module's docstring. Imports no command."""
    import ast
    from pathlib import Path

    lines = ["usage: graphmill COMMAND --option value …; graphmill COMMAND --help lists its options", ""]
    for command, module in COMMANDS.items():
        text = Path(__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()
        lines.append(f"  {command:<20}{(ast.get_docstring(ast.parse(text)) or '').splitlines()[0].partition(':')[0]}")
    return "\n".join(lines)


def _versions() -> str:
    """Versions of Graphmill, Python and the packages that matter in a bug report."""
    from importlib.metadata import PackageNotFoundError, version
    from platform import platform, python_version

    lines = [f"graphmill {__getattr__('__version__')}", f"python {python_version()}, {platform()}"]
    for package in _VERSIONS:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} is not installed")
    return "\n".join(lines)


def main() -> None:
    """Runs `graphmill COMMAND …`. `python jobs/COMMAND.py …` does the same."""
    from graphmill.jobs.cli.exit_codes import run

    words = sys.argv[1:]
    if words == ["--version"]:
        print(_versions())
        return
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help", *words[2:]]
    if not words or words[0] in ("--help", "-h"):
        print(_commands())
        return
    command = words[0].replace("-", "_")
    if command not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, 1)
        perhaps = f", perhaps {near[0]}" if near else ""
        usage = f"usage: graphmill COMMAND …, COMMAND one of {', '.join(COMMANDS)}"
        print(f"unknown command {words[0]}{perhaps}; {usage}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"graphmill {command}", *words[1:]]  # jobs/cli/typed_commands.py reads argv[0]
    run(import_module(COMMANDS[command]).main)
