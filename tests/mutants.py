"""Checks if tests notice small faults. Puts random faults into product code and runs the tests that import the module:
`python -m tests.mutants`.

    python -m tests.mutants --count 60 --seed 0 --out runs/mutants        under an hour on one core

A mutant is a copy of HEAD's files in which a random line has one changed expression, or lacks one statement. Its tests
are the test files of `make test` that import its module, without tests marked `ray`, `slow` or `long`. If no test file
imports the module, its tests are those of the modules that import it. They run until one fails. A failure counts only
if the same test passes without the mutant. If no test notices a mutant, it is "missed". If no test runs its line,
another mutant is drawn instead. If the tests take more than --limit-s CPU seconds without a failure, the mutant is
"undecided". The results are written to results.md and results.json under --out. A run that is started again continues.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PRODUCT = ("core", "storage", "samplers", "models", "cluster", "jobs")
# Imported once, before processes are forked to run tests.
LOADED_ONCE = ("hypothesis", "networkx", "numba", "pyarrow.dataset", "ray.train.torch", "scipy.sparse", "torch")
NOT_MUTATED = ("jobs/bench/", "jobs/papers/")
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.MatMult: ast.Add,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One fault: the bytes [start, end) of a file are replaced by `after`."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str
    probe: str
    """Code for the same place that works like the original code and also records that it has run."""


def changed(node: ast.AST) -> ast.AST | None:
    """Returns the syntax node with a fault, or None if this kind of node can have no fault."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[operator, *_]):
            other.ops[0] = COMPARED[type(operator)]()
        case ast.BinOp(op=operator):
            other.op = COMPUTED[type(operator)]() if type(operator) in COMPUTED else ast.Sub()
        case ast.BoolOp(op=operator):
            other.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            other.value = not value
        case ast.Constant(value=int(value) | float(value)):
            other.value = value + 1
        case ast.IfExp(test=test):
            other.test = ast.UnaryOp(ast.Not(), test)
        case ast.AugAssign(op=ast.Add()):
            other.op = ast.Sub()
        case ast.Return(value=ast.expr()):
            other.value = ast.Constant(None)
        case ast.Expr(value=ast.Call()):
            return ast.Pass()
        case _:
            return None
    return other


def mutants_of(path: str, marker: Path) -> Iterator[Mutant]:
    """All possible mutants of a file. Annotations, assertions, decorators and texts have no mutants."""
    source = (REPOSITORY / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(
            node, (ast.JoinedStr, ast.Assert, ast.Raise, ast.Import, ast.ImportFrom, ast.arguments, ast.pattern)
        ):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        other = changed(node)
        if other is not None:
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            text, note = source[start:end].decode(), f"__import__('pathlib').Path({str(marker)!r}).touch()"
            after, probe = f"({ast.unparse(other)})", f"({note} or ({text}))"
            if isinstance(node, ast.stmt):
                after, probe = ast.unparse(other), f"{note}; {text}"
            yield Mutant(path, node.lineno, start, end, text, after, probe)
        for name, value in ast.iter_fields(node):
            if name in (
                "annotation",
                "returns",
                "decorator_list",
                "keywords" if isinstance(node, ast.ClassDef) else "",
            ):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child)

    yield from visit(ast.parse(source))


def imports_of(path: Path) -> set[str]:
    """The paths of our modules that a file imports. `from a import b` counts as a/b.py, if this file exists."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = {name.removeprefix("graphmill.").replace(".", "/") + ".py" for name in names}
    return {one for one in paths if (REPOSITORY / one).exists()}


def tests_by_module(product: Sequence[str]) -> dict[str, list[str]]:
    """For each module, the test files that import it. If no test file does, the test files of the modules that import it."""
    tests = sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests").rglob("test_*.py"))
    importers: dict[str, set[str]] = defaultdict(set)
    for path in [*tests, *product]:
        for module in imports_of(REPOSITORY / path):
            importers[module].add(path)
    chosen = {}
    for module in product:
        stem, folder = Path(module).stem, Path(module).parts[0]
        ring = seen = {module}
        while ring and not any(path in tests for path in ring):
            ring = set().union(*(importers[one] for one in ring)) - seen
            seen = seen | ring
        # First come the tests of the module itself, then the tests of its folder. They notice most faults early.
        chosen[module] = sorted(ring & set(tests), key=lambda path: (stem not in path, f"/{folder}/" not in path, path))
    return chosen


def copied_checkout(folder: Path) -> Path:
    """A copy of HEAD's files. Next to it are the data folders that tests use."""
    tree = folder / "tree"
    tree.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    if (REPOSITORY.parent / "shared").exists():
        (folder / "shared").symlink_to((REPOSITORY.parent / "shared").resolve())
    return tree


def run_all(tree: Path, tests: Sequence[str], skipped: Sequence[str], limit_s: float) -> tuple[str, list[str]]:
    """Calls `run_tests` first for the two files that most likely notice the mutant, then for the others. Most mutants fail in the first call."""
    for part in filter(None, (tests[:2], tests[2:])):
        outcome, failed = run_tests(tree, [*part, *skipped], limit_s)
        if outcome != "passed":
            break
    return outcome, failed


def run_tests(tree: Path, tests: Sequence[str], limit_s: float) -> tuple[str, list[str]]:
    """Runs tests in a fork of this process, up to the first failure. Returns ("passed", "failed" or "too long", the failed tests)."""
    output = tree.with_name("output")
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.chdir(tree)
        sys.path[0] = str(tree)
        sys.argv = ["pytest"]
        os.environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        # Python detects a changed file by its size and its time in seconds, and two mutants of equal size may be written within one
        # second.
        sys.dont_write_bytecode = True
        for number in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), number)
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not ray and not slow", *tests])
        sys.stdout.flush()
        os._exit(int(code))
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0) and cpu_seconds(pid) < limit_s:
        time.sleep(0.1)
    if done == (0, 0):
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "too long", []
    status = os.waitstatus_to_exitcode(done[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # processes that its tests have left
    failed = re.findall(r"^FAILED (.+) \((?:setup|call|teardown)\): ", output.read_text(errors="replace"), re.MULTILINE)
    return "passed" if status in (0, 5) else "failed", failed


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of all processes that it has started. Other work on the machine does not count."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:4])
    return total


def judge(mutant: Mutant, tree: Path, tests: Sequence[str], marker: Path, limit_s: float) -> tuple[str, str]:
    """Tests one mutant. Returns ("caught", name of the test), ("missed", ""), ("not run", "") or ("undecided", "")."""
    file, source = tree / mutant.path, (tree / mutant.path).read_bytes()
    skipped: list[str] = []
    if not tests:
        return "not run", ""
    try:
        while True:
            file.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
            outcome, failed = run_all(tree, tests, skipped, limit_s)
            if outcome == "too long":
                return "undecided", ""
            if outcome == "passed":
                break
            file.write_bytes(source)
            again, _ = run_tests(tree, failed or tests, limit_s)
            if again == "passed" or not failed:
                return "caught", " ".join(failed)
            skipped += [f"--deselect={one}" for one in failed]
        marker.unlink(missing_ok=True)
        file.write_bytes(source[: mutant.start] + mutant.probe.encode() + source[mutant.end :])
        outcome, _ = run_all(tree, tests, skipped, limit_s)
        return ("missed" if marker.exists() or outcome == "failed" else "not run"), ""
    finally:
        file.write_bytes(source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=90.0, help="processor seconds of a run")
    parser.add_argument("--only", nargs="*", default=[""], help="faults in files whose paths begin so")
    parser.add_argument("--also", nargs="*", default=[], help="test files to run beside those that import the module")
    parser.add_argument("--out", type=Path, default=Path("runs/mutants"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "results.json"
    before = json.loads(kept.read_text()) if kept.exists() else []
    decided = {(one["path"], one["line"]): one for one in before if one["outcome"] != "undecided"}
    results: list[dict[str, Any]] = []
    product = [
        str(path.relative_to(REPOSITORY)) for folder in PRODUCT for path in sorted((REPOSITORY / folder).rglob("*.py"))
    ]
    product = [path for path in product if not path.startswith(NOT_MUTATED)]
    tests = tests_by_module(product)
    draw = random.Random(options.seed)
    for name in LOADED_ONCE:
        importlib.import_module(name)
    folder = Path(tempfile.mkdtemp(prefix="graphmill-mutants-"))
    marker = folder / "was-run"
    try:
        tree = copied_checkout(folder)
        by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
        for path in filter(lambda path: path.startswith(tuple(options.only)), product):
            for mutant in mutants_of(path, marker):
                by_line[mutant.path, mutant.line].append(mutant)
        lines = sorted(by_line)
        draw.shuffle(lines)
        for line in lines:
            mutant = draw.choice(by_line[line])
            results.append(decided.get(line) or {})
            if not results[-1]:
                outcome, by = judge(mutant, tree, [*options.also, *tests[mutant.path]], marker, options.limit_s)
                results[-1] = {**asdict(mutant), "outcome": outcome, "by": by}
                kept.write_text(json.dumps(results, indent=1) + "\n")
                print(
                    f"{mutant.path}:{mutant.line}: {outcome} {by}\n    {mutant.before}  ->  {mutant.after}", flush=True
                )
            if sum(one["outcome"] in ("caught", "missed") for one in results) >= options.count:
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counts = {
        name: sum(one["outcome"] == name for one in results) for name in ("caught", "missed", "undecided", "not run")
    }
    text = [f"seed {options.seed}: {counts}", "", "| missed | was | mutant |", "|---|---|---|"]
    for one in results:
        if one["outcome"] in ("missed", "undecided"):
            before, after = (" ".join(one[key].split()).replace("|", "\\|") for key in ("before", "after"))
            text.append(f"| {one['path']}:{one['line']} ({one['outcome']}) | `{before}` | `{after}` |")
    (options.out / "results.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
