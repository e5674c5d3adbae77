"""Search spaces in plain words: `learning-rate=1e-3,3e-3` is a choice, `learning-rate=1e-4..1e-2:log` a range to draw from.

Trials are a pure function of the space and its seed: draw k of an option depends on (seed, k, option) and on nothing else. So a sweep
with more draws begins with the same trials, whatever ran when, and a value can be typed as it was printed.
"""

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import ConfigError

_DIGITS = 6  # of a drawn value: what is printed is the value


@dataclass(frozen=True)
class Choice:
    """All of these values, one after another."""

    option: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Draw:
    """Values between two bounds, both included; evenly, or evenly in their logarithm; whole numbers where the option takes no others."""

    option: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def value(self, seed: int, number: int) -> str:
        """The draw with this number, from 0."""
        text = f"{seed}/{number}/{self.option}".encode()
        share = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) / 2**64  # in [0, 1)
        # A whole number k stands for [k, k + 1), so that the bounds are as likely as the others.
        low, high = self.low, self.high + (1 if self.whole else 0)
        if self.log:
            drawn = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            drawn = low + share * (high - low)
        if self.whole:
            return str(min(max(math.floor(drawn), int(self.low)), int(self.high)))
        return repr(min(max(float(f"{drawn:.{_DIGITS}g}"), self.low), self.high))


def parse_try(text: str) -> Choice:
    """`OPTION=A,B,…`. Raises ConfigError naming --try where it is not that."""
    option, values = _split(text, "--try", "a list, such as learning-rate=1e-3,3e-3")
    found = tuple(value.strip() for value in values.split(","))
    if not all(found):
        raise ConfigError(f"--try {text}: expected a value between commas, got an empty one; leave the comma out")
    if len(set(found)) < len(found):
        raise ConfigError(f"--try {text}: expected each value once; leave out what is repeated")
    return Choice(option, found)


def parse_draw(text: str, whole: bool = False) -> Draw:
    """`OPTION=LOW..HIGH` or `OPTION=LOW..HIGH:log`. Raises ConfigError naming --draw where it is not that."""
    option, values = _split(text, "--draw", "a range, such as learning-rate=1e-4..1e-2:log")
    bounds, colon, kind = values.partition(":")
    low_text, dots, high_text = bounds.partition("..")
    if not dots or (colon and kind != "log"):
        raise ConfigError(f"--draw {text}: expected LOW..HIGH or LOW..HIGH:log, got {values!r}")
    low, high = _number(low_text, text), _number(high_text, text)
    if whole and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"--draw {text}: --{option} takes whole numbers; give whole bounds")
    if low > high:
        raise ConfigError(f"--draw {text}: expected the lower bound first, got {low_text} > {high_text}; swap them")
    if kind == "log" and low <= 0:
        raise ConfigError(f"--draw {text}: a logarithmic range begins above 0, got {low_text}; leave out :log")
    return Draw(option, low, high, kind == "log", whole)


def trial_options(choices: Sequence[Choice], draws: Sequence[Draw], num_draws: int, seed: int) -> list[dict[str, str]]:
    """The trials, each as {option: value}: for every draw, every combination of the choices.

    Raises ConfigError where an option occurs twice.
    """
    names = [choice.option for choice in choices] + [draw.option for draw in draws]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"--{twice} is in the search space twice; give one --try or --draw for it")
    found = []
    for number in range(num_draws if draws else 1):
        drawn = {draw.option: draw.value(seed, number) for draw in draws}
        for values in itertools.product(*(choice.values for choice in choices)):
            found.append({**{c.option: v for c, v in zip(choices, values, strict=True)}, **drawn})
    unique = {tuple(trial.items()): trial for trial in found}  # whole numbers may be drawn twice
    return list(unique.values())


def _split(text: str, flag: str, example: str) -> tuple[str, str]:
    option, equals, values = text.partition("=")
    option = option.strip().lstrip("-").replace("_", "-")
    if not equals or not option or not values.strip():
        raise ConfigError(f"{flag} {text}: expected an option of the job and {example}")
    return option, values.strip()


def _number(text: str, whole_text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"--draw {whole_text}: expected numbers, got {text.strip()!r}")
    return value
