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
    "open_graph": "storage.graph:open_graph",
    "open_graphs": "storage.graph_store:open_graphs",
    "open_typed_graph": "storage.typed_graph:open_typed_graph",
    "ingest": "storage.ingest:ingest",
    "ingest_typed": "storage.typed_ingestion:ingest_typed",
    "IngestOptions": "storage.ingest:IngestOptions",
    "ArrayGraph": "storage.importers.array_graph:ArrayGraph",
    "knowledge_graph": "storage.importers.triples:knowledge_graph",
    "router": "samplers.router:local_router",
    "typed_router": "samplers.typed_router:typed_router",
    "RunConfig": "jobs.run.config:RunConfig",
    "config": "jobs.run.train:config",
    "train": "jobs.run.train:train",
    "predict": "jobs.predict:predict",
    "read_run": "jobs.run.finished_run:read_run",
}
_SAMPLERS = {
    "NeighborSampler": "samplers.neighbor:NeighborSampler",
    "Node2SubgraphSampler": "samplers.node2subgraph:Node2SubgraphSampler",
    "RandomPartitionSampler": "samplers.random_partition:RandomPartitionSampler",
    "PprSampler": "samplers.ppr:PprSampler",
    "SaintSampler": "samplers.saint:SaintSampler",
    "TypedNeighborSampler": "samplers.typed_neighbor:TypedNeighborSampler",
    "TypedNode2SubgraphSampler": "samplers.typed_subgraphs:TypedNode2SubgraphSampler",
    "TypedPprSampler": "samplers.typed_subgraphs:TypedPprSampler",
    "GraphBatchSampler": "samplers.graph_batches:GraphBatchSampler",
    "Loader": "samplers.loader:Loader",
    **{
        name: f"samplers.options:{name}"
        for name in (
            "NeighborOptions",
            "Node2SubgraphOptions",
            "RandomPartitionOptions",
            "PprOptions",
            "SaintOptions",
            "TypedNeighborOptions",
            "TypedNode2SubgraphOptions",
            "TypedPprOptions",
            "GraphBatchOptions",
            "LoaderOptions",
        )
    },
}
_MODELS = {
    "GECO": "models.geco:GECO",
    "GECOConfig": "models.options.geco:GECOConfig",
    "GECOGraphs": "models.geco_graphs:GECOGraphs",
    "GECOGraphsConfig": "models.options.geco_graphs:GECOGraphsConfig",
    "GRIT": "models.grit:GRIT",
    "GRITConfig": "models.options.grit:GRITConfig",
    "PPGT": "models.ppgt:PPGT",
    "PPGTConfig": "models.options.ppgt:PPGTConfig",
    "Primphormer": "models.primphormer:Primphormer",
    "PrimphormerConfig": "models.options.primphormer:PrimphormerConfig",
    "TokenGT": "models.tokengt:TokenGT",
    "TokenGTConfig": "models.options.tokengt:TokenGTConfig",
    "MessagePassing": "models.message_passing:MessagePassing",
    "SAGEConfig": "models.options.message_passing:SAGEConfig",
    "GCNConfig": "models.options.message_passing:GCNConfig",
    "GATConfig": "models.options.message_passing:GATConfig",
    "RSAGE": "models.relational:RSAGE",
    "RSAGEConfig": "models.options.relational:RSAGEConfig",
    "OverTypes": "models.relational:OverTypes",
    "RelationalConfig": "models.options.relational:RelationalConfig",
    "NodeGECO": "models.geco:NodeGECO",
    "Graphs": "models.graphs:Graphs",
}

# What `graphmill COMMAND` runs: the main function of a module.
COMMANDS = {
    "train": "jobs.train_nodes",  # or graphs, where the recipe says so
    "train_nodes": "jobs.train_nodes",
    "train_graphs": "jobs.train_graphs",
    "train_links": "jobs.train_links",
    "ingest": "jobs.ingest",
    "encode": "jobs.encode",
    "inspect_graph": "jobs.inspect_graph",
    "predict": "jobs.predict",
    "export_index": "jobs.export_index",
    "sweep": "jobs.sweep",
    "replay": "jobs.replay",
    "report": "jobs.report",
    "prune": "jobs.prune",
    "doctor": "jobs.doctor",
    "convert_checkpoint": "jobs.convert_checkpoint",
    "bench": "jobs.bench.__main__",
}


class _Namespace:
    """Public names of one folder."""

    def __init__(self, table: dict[str, str]) -> None:
        self._table = table

    def __dir__(self) -> list[str]:
        return sorted(self._table)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._table:
            raise AttributeError(f"expected one of {', '.join(dir(self))}, got {name!r}")
        return _load(self._table[name])


samplers, models = _Namespace(_SAMPLERS), _Namespace(_MODELS)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("graphmill")
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
        text = (Path(__file__).parent / (module.replace(".", "/") + ".py")).read_text()
        lines.append(f"  {command:<20}{(ast.get_docstring(ast.parse(text)) or '').splitlines()[0].partition(':')[0]}")
    return "\n".join(lines)


def main() -> None:
    """`graphmill COMMAND …`: the same as `python jobs/COMMAND.py …`."""
    from jobs.run.exit_codes import run

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
    sys.argv = [f"graphmill {command}", *words[1:]]  # how jobs/run/commands.py knows it
    run(import_module(COMMANDS[command]).main)


if __name__ == "__main__":
    main()
