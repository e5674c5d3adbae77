"""Prints the output of `--help`. A command with many options prints one line for each common option, and the groups. `--help GROUP`, `--help WORD` and `--help
all` print the rest."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from graphmill.core.errors import UsageError
from graphmill.core.public_names import nearest

MOST = 25
_MOST_LINES = 60  # longer help is shortened
# The common options of a training. Each command and kind of run has some of these options.
USUAL = (
    *("plan", "quiet", "data.path", "data.nodes", "data.molecules"),
    *("model", "model.width", "model.num_layers", "model.dropout"),
    *("sampler", "sampler.fanouts", "sampler.batch_size", "sampler.num_chunks", "sampler.max_graphs", "task"),
    *("task.metric", "evaluation.how", "baseline.models", "fit.epochs", "fit.steps", "fit.learning_rate"),
    *("fit.patience", "fit.seed", "fit.start_from", "workers.num_workers", "workers.device"),
    *("ray.address", "run.dir", "run.resume", "run.parallel"),
)
_WIDTH, _COLUMN = 118, 34


@dataclass(frozen=True)
class Option:
    """An option as `--help` and completion show it, or the heading of a group of options."""

    flag: str  # name without dashes. In capitals: a positional word. Equal to `group`: a heading
    metavar: str | None  # None: a heading without a value
    text: str
    default: str | None = None
    group: str = ""
    choices: tuple[str, ...] = ()  # all values, if they are few

    @property
    def _head(self) -> str:
        name = self.flag if self.flag.isupper() else f"--{self.flag}"
        return f"  {name} {self.metavar or ''}".rstrip()

    @property
    def line(self) -> str:
        """The first sentence of the text and the default, cut to the width of a line."""
        sentence = re.split(r"(?<=[\w)])\.\s", self.text)[0].rstrip(".")
        default = "" if self.default is None else f" ({self.default})"
        width = max(20, _WIDTH - max(_COLUMN, len(self._head)) - len(default))
        return f"{self._head:<{_COLUMN}} {textwrap.shorten(sentence, width, placeholder=' …')}{default}"

    @property
    def lines(self) -> list[str]:
        """The whole text, wrapped."""
        text = self.text if self.default is None else f"{self.text} (default {self.default})"
        if self.flag == self.group:
            return [f"{self._head.strip()}: {text}"]
        return [self._head, *textwrap.wrap(text, 112, initial_indent=" " * 8, subsequent_indent=" " * 8)]


class HelpShown(SystemExit):
    """Ends a command that has printed its help, with status 0."""

    def __init__(self, options: Sequence[Option]) -> None:
        super().__init__(0)
        self.options = options


def take_topics(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """(the words without `--help` and its topics; the topics, which are the words after `--help` up to the next flag). Topics are None without `--help`."""
    rest: list[str] = []
    topics: list[str] | None = None
    asked = False
    for word in words:
        if word in ("--help", "-h"):
            topics, asked = topics or [], True
        elif asked and topics is not None and not word.startswith("--"):
            topics.append(word)
        else:
            asked = False
            rest.append(word)
    return rest, topics


def show_help(about: str, usage: str, options: Sequence[Option], topics: Sequence[str], command: str) -> NoReturn:
    """Prints the help on these topics and ends the process. Raises UsageError for a topic that matches no option."""
    lines = whole_help(options)
    if topics or len(lines) > _MOST_LINES:
        lines = short_help(options, topics, command)
    above = [] if topics else [*about.strip().splitlines(), ""]
    print("\n".join([*above, f"usage: {usage} --option value …", "", *lines]))
    raise HelpShown(options)


def whole_help(options: Sequence[Option]) -> list[str]:
    """The full text of all options, with an empty line between groups."""
    lines: list[str] = []
    for before, option in zip([*options[:1], *options], options, strict=False):
        lines += ["", *option.lines] if option.group != before.group else option.lines
    return lines


def short_help(options: Sequence[Option], topics: Sequence[str], command: str) -> list[str]:
    """The lines that `--help` prints for these topics. Raises UsageError for a topic that matches no option."""
    if list(topics) == ["all"]:
        return whole_help(options)
    known = {option.flag: option for option in options if option.metavar is not None and not option.flag.isupper()}
    headings = {option.flag: option for option in options if option.flag == option.group}
    groups: dict[str, list[str]] = {}
    for flag in known:
        if "." in flag:
            groups.setdefault(flag.partition(".")[0], []).append(flag)
    if not topics:
        usual = [flag for flag in known if "." not in flag]
        if "fit.epochs" in known:
            usual = [flag for flag in USUAL if flag in known]
        counts = ", ".join(f"{group} {len(flags)}" for group, flags in groups.items())
        more = f"All {len(known)} options: {command} --help all; of a group: --help GROUP; with a word in the name: --help WORD. Groups: {counts}."
        return [*(known[flag].line for flag in usual[:MOST]), "", *textwrap.wrap(more, _WIDTH)]
    picked: list[str] = []
    for topic in topics:
        word = topic.strip("-").replace("-", "_")
        flags = groups.get(word) or ([word] if word in known else [flag for flag in known if word in flag])
        if not flags:
            near = nearest(word, dict.fromkeys([*groups, *known], ""))
            advice = f"; perhaps {' or '.join(near)}" if near else ""
            raise UsageError(
                f"--help: expected all, a group or a word of an option's name, got {topic!r}{advice}; groups: {', '.join(groups)}"
            )
        about = headings[word].lines if word in headings and word in groups else []
        picked += ["", *about, *(line for flag in flags for line in known[flag].lines)]
    return picked[1:]
