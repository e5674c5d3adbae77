"""Graphmill from Python and from the shell: `import graphmill as gm`, and `graphmill COMMAND …`. Names load when they are first used.

graph = gm.open_graph("graphs/products")
sampler = gm.samplers.NeighborSampler(gm.router(graph), gm.samplers.NeighborOptions(fanouts=(15, 10, 5)))
run = gm.train(gm.config("--data", "graphs/products", "--fit.epochs", 3))
predictions = gm.predict(run)
"""

import sys
from importlib import import_module
from typing import Any

_NAMES = {
    "open_graph": "graphmill.storage.graph:open_graph",
    "open_graphs": "graphmill.storage.graph_sets.graph_set:open_graphs",
    "ingest": "graphmill.storage.ingestion.ingest:ingest",
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
    "read_run": "graphmill.jobs.records.run_record:read_run",
}

# What `graphmill COMMAND` runs: the main function of a module.
COMMANDS = {
    "train": "graphmill.jobs.train_nodes",  # or graphs, where the recipe says so
    "train_nodes": "graphmill.jobs.train_nodes",
    "train_graphs": "graphmill.jobs.train_graphs",
    "train_links": "graphmill.jobs.train_links",
    "ingest": "graphmill.jobs.ingest",
    "encode": "graphmill.jobs.encode",
    "inspect_graph": "graphmill.jobs.inspect_graph",
    "predict": "graphmill.jobs.predict",
    "export_index": "graphmill.jobs.export_index",
    "sweep": "graphmill.jobs.sweep",
    "replay": "graphmill.jobs.replay",
    "report": "graphmill.jobs.report",
    "prune": "graphmill.jobs.prune",
    "doctor": "graphmill.jobs.doctor",
    "convert_checkpoint": "graphmill.jobs.convert_checkpoint",
    "bench": "graphmill.jobs.bench.__main__",
}


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("graphmill")
    if name in ("models", "samplers"):
        return import_module(f"graphmill.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'graphmill' has no attribute {name!r}")
    return _load(_NAMES[name])


def __dir__() -> list[str]:
    return sorted([*_NAMES, "models", "samplers"])


def _commands() -> str:
    """Each command with the first line of its module, which is not imported for it."""
    import ast
    from pathlib import Path

    lines = ["usage: graphmill COMMAND --option value …; graphmill COMMAND --help lists its options", ""]
    for command, module in COMMANDS.items():
        text = Path(__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()
        lines.append(f"  {command:<20}{(ast.get_docstring(ast.parse(text)) or '').splitlines()[0].partition(':')[0]}")
    return "\n".join(lines)


def main() -> None:
    """`graphmill COMMAND …`: the same as `python jobs/COMMAND.py …`."""
    from graphmill.jobs.cli.exit_codes import run

    words = sys.argv[1:]
    if words == ["--version"]:
        print(f"graphmill {__getattr__('__version__')}")
        return
    if words[:1] in (["--help"], ["-h"]):
        print(_commands())
        return
    if not words or words[0].replace("-", "_") not in COMMANDS:
        wrong = f"unknown command {words[0]}; " if words else ""
        print(f"{wrong}usage: graphmill COMMAND …, COMMAND one of {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    command = words[0].replace("-", "_")
    sys.argv = [f"graphmill {command}", *words[1:]]  # how jobs/cli/typed_commands.py knows it
    run(import_module(COMMANDS[command]).main)
