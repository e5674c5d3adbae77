"""Verifies a run: checks its files against its receipt, replays steps drawn at random, and says whether every bit is equal.

    graphmill verify runs/my-run                       5 steps
    graphmill verify runs/my-run --steps all           every step
    graphmill verify receipt.json --data graphs/mine   the first 5 steps, with a receipt from graphmill export-receipt and the graph alone

The exit status is 1 if anything differs, and 3 if nothing differs but bits could not be compared. docs/guides/verify.md says what a verification proves.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import check_fields
from graphmill.jobs.cli.exit_codes import UNPROVEN, run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphmill.jobs.proof.verification import Verification


@dataclass(frozen=True)
class VerifyConfig:
    """Verify a run against its receipt."""

    run: str
    """The run's directory, or a file from graphmill export-receipt."""
    steps: str = "5"
    """Number of steps to draw, or all. An exported receipt has no checkpoints: its first steps are replayed."""
    seed: int | None = None
    """Seed of the draw; none: a random seed, which is printed."""
    data: str | None = None
    """The graph or set of the run; none: where the run found it."""
    allow_import: bool = False
    """Import and run the user's own model, sampler or task that the run names."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.steps != "all" and not (self.steps.isdecimal() and int(self.steps) > 0):
            raise ConfigError(f"steps: expected a number of at least 1, or all, got {self.steps!r}; set --steps")
        if self.seed is not None and self.seed < 0:
            raise ConfigError(f"seed: expected at least 0, got {self.seed}; set --seed")


def verify(
    run: object, steps: int | str = 5, *, seed: int | None = None, data: str | None = None, allow_import: bool = False
) -> "Verification":
    """Verifies a run: `gm.verify(run)`, `gm.verify("runs/my-run", steps="all")`. `run`: a directory, a Run, or a file from `graphmill export-receipt`.

    `steps`: number of steps to draw, or "all". `seed`: of the draw; None: a random one. `data`: the graph; None: where the run found it. The result's
    `is_verified` is False if a file, a batch, a loss, a gradient or a weight differs from the record, and None if numbers were compared within a bound alone,
    because this machine is of another kind, or no step was replayed. Raises FormatError if the run has no receipt or its
    chain is broken; ConfigError for a wrong argument.
    """
    path = str(getattr(run, "path", run))
    return _verify(VerifyConfig(path, str(steps), seed, data, allow_import), lambda _: None)


def _verify(config: VerifyConfig, say: "Callable[[str], None]") -> "Verification":
    from graphmill.jobs.proof.verification import SCORES, Verifier, cost_line, draw_steps, step_seconds, verify_files

    replay, result = verify_files(config.run, config.data, allow_import=config.allow_import)
    say(f"checked {', '.join(result.checked)}")
    for problem in result.problems:
        say(f"altered: {problem}")
    if result.problems:
        return result
    draw = draw_steps(replay, None if config.steps == "all" else int(config.steps), config.seed)
    result.draw = draw
    if draw.seed is not None:
        say(f"seed {draw.seed}: steps {', '.join(map(str, draw.asked))}")
    say(cost_line(draw, step_seconds(replay.proven)))
    verifier = Verifier(replay, result)
    for each in draw.passes:
        verifier.run(each)
    if result.others:
        say(f"not compared bit for bit: {'; '.join(result.others)}")
        say(f"largest relative difference of a loss or norm: {result.largest:.2g}")
    say(SCORES)
    say(result.outcome)
    return result


def main() -> int:
    config = parse(VerifyConfig, __doc__, ("run",))
    result = _verify(config, lambda line: print(line, flush=True))
    return 1 if result.is_verified is False else 0 if result.is_verified else UNPROVEN


if __name__ == "__main__":
    run(main)
