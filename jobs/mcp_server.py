"""Serves Graphmill to programs that speak the Model Context Protocol, such as agents and notebooks: `graphmill mcp FOLDER [--allow train predict]`.

The server reads requests from its standard input and answers on its standard output. It offers the tools list, inspect, plan, status, compare, audit and
verify, which only read; --allow adds train and predict, which write below FOLDER. A training is planned first, and refused if its plan is above what is left
of --max-cpu-seconds. All paths lie below FOLDER, no tool imports foreign code or opens a URL, and an answer has at most about 20,000 characters. Needs the
extra: pip install 'graphmill[mcp]'.
"""

from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

from graphmill.core.errors import ConfigError, GraphmillError, MissingDependencyError
from graphmill.core.option_checks import Positive, check_fields
from graphmill.jobs.agents.tools import WRITING, Session, ToolRow, offered
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

_INSTRUCTIONS = (
    "Graphmill trains graph transformers on stored graphs. Paths are relative to the server's folder. Inspect and audit data before you train on it, plan before "
    "you train, and name the data's hash and the audit when you report a score."
)


@dataclass(frozen=True)
class McpConfig:
    """Serve the Model Context Protocol on standard input and output."""

    folder: str
    """The folder below which all graphs and runs lie."""
    allow: tuple[str, ...] = ()
    """Tools that write: train, predict. Without this option the server only reads."""
    max_cpu_seconds: Positive = 600.0
    """Processor time that all trainings, predictions and verifications of this server may use."""
    max_wait_s: Positive = 600.0
    """Longest wait for the answer of a tool, in seconds."""

    def __post_init__(self) -> None:
        check_fields(self)
        if unknown := [name for name in self.allow if name not in WRITING]:
            raise ConfigError(f"allow: expected tools of {', '.join(WRITING)}, got {unknown[0]!r}; set --allow")


def main() -> None:
    config = parse(McpConfig, __doc__, ("folder",))
    build_server(config).run("stdio")


def build_server(config: McpConfig) -> "MCPServer[Any]":
    """The server with its tools. Raises ConfigError if there is no such folder, and MissingDependencyError without the extra `mcp`."""
    from graphmill.jobs.agents.root_folder import RootFolder

    try:
        from mcp.server.mcpserver import MCPServer
        from mcp_types import ToolAnnotations
    except ImportError:
        raise MissingDependencyError("graphmill mcp needs the extra: pip install 'graphmill[mcp]'") from None
    root = Path(config.folder).resolve()
    if not root.is_dir():
        raise ConfigError(f"{config.folder}: expected a folder of graphs and runs, found none; make it first")
    session = Session(RootFolder(root), config.max_cpu_seconds, config.max_wait_s)
    server: MCPServer[Any] = MCPServer("graphmill", instructions=_INSTRUCTIONS, log_level="WARNING")
    for name, row in offered(config.allow).items():
        hints = ToolAnnotations(read_only_hint=not row.writes, destructive_hint=False, open_world_hint=False)
        server.add_tool(_tool(row, session), name=name, annotations=hints, structured_output=False)
    return server


def _tool(row: ToolRow, session: Session) -> Any:
    """The tool as a function whose errors are the lines that the commands print."""
    from mcp.server.mcpserver.exceptions import ToolError

    bound = MethodType(row.call, session)

    @wraps(bound)
    def tool(*values: Any, **named: Any) -> str:
        try:
            return str(bound(*values, **named))
        except GraphmillError as error:
            raise ToolError(str(error)) from None

    return tool


if __name__ == "__main__":
    run(main)
