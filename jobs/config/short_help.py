"""What `--help` prints of a command with many options: the usual ones, a line each, and the groups; `--help GROUP`, `--help WORD` and `--help all` the rest."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphmill.core.errors import UsageError
from graphmill.core.public_names import nearest

MOST = 25
# Of a training; of each command and kind those that it has.
USUAL = (
    *(
        "plan",
        "quiet",
        "data.path",
        "data.nodes",
        "data.molecules",
        "model",
        "model.width",
        "model.num_layers",
        "model.dropout",
    ),
    *("sampler", "sampler.fanouts", "sampler.batch_size", "sampler.num_chunks", "sampler.max_graphs", "task"),
    *("task.metric", "evaluation.how", "baseline.models", "fit.epochs", "fit.steps", "fit.learning_rate"),
    *("fit.patience", "fit.seed", "fit.start_from", "workers.num_workers", "workers.device"),
    *("ray.address", "run.dir", "run.resume", "run.parallel"),
)
_WIDTH, _COLUMN = 118, 34


@dataclass(frozen=True)
class _Option:
    flag: str  # without dashes
    metavar: str
    text: str  # what it does, and its default

    @property
    def line(self) -> str:
        """Its first sentence and its default, cut at a width."""
        head = f"  --{self.flag} {self.metavar}".rstrip()
        said, _, default = self.text.partition(" (default ")
        default = default and f" ({default}"
        sentence = re.split(r"(?<=[\w)])\.\s", said)[0].rstrip(".")
        return (
            f"{head:<{_COLUMN}} "
            + textwrap.shorten(sentence, max(20, _WIDTH - max(_COLUMN, len(head)) - len(default)), placeholder=" …")
            + default
        )

    @property
    def lines(self) -> list[str]:
        """All that is said of it."""
        head = f"  --{self.flag} {self.metavar}".rstrip()
        return [head, *textwrap.wrap(self.text, 112, initial_indent=" " * 8, subsequent_indent=" " * 8)]


def take_topics(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """(the words without `--help` and what follows it up to the next flag, which is what help is asked about); None: no help is asked for."""
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


def short_help(lines: Sequence[str], topics: Sequence[str], command: str) -> list[str]:
    """Of the whole help's lines what `--help` with these topics prints. Raises UsageError for a topic that no option has."""
    if list(topics) == ["all"]:
        return list(lines)
    options, headings = _options(lines), _headings(lines)
    groups = list(dict.fromkeys(flag.partition(".")[0] for flag in options if "." in flag))
    if not topics:
        usual = [flag for flag in options if "." not in flag]
        if "fit.epochs" in options:
            usual = [flag for flag in USUAL if flag in options]
        counts = ", ".join(f"{group} {len(_of(group, options))}" for group in groups)
        more = f"All {len(options)} options: {command} --help all; of a group: --help GROUP; with a word in the name: --help WORD. Groups: {counts}."
        return [*(options[flag].line for flag in usual[:MOST]), "", *textwrap.wrap(more, _WIDTH)]
    picked: list[str] = []
    for topic in topics:
        word = topic.strip("-").replace("-", "_")
        flags = (
            _of(word, options) if word in groups else [word] if word in options else [f for f in options if word in f]
        )
        if not flags:
            near = nearest(word, {**dict.fromkeys(groups, ""), **dict.fromkeys(options, "")})
            told = f"; perhaps {' or '.join(near)}" if near else ""
            raise UsageError(
                f"--help: expected all, a group or a word of an option's name, got {topic!r}{told}; groups: {', '.join(groups)}"
            )
        picked += [
            "",
            *([headings[word]] if word in headings else []),
            *(line for f in flags for line in options[f].lines),
        ]
    return picked[1:]


def _of(group: str, options: Mapping[str, _Option]) -> list[str]:
    return [flag for flag in options if flag.startswith(f"{group}.")]


def _options(lines: Sequence[str]) -> dict[str, _Option]:
    """Every option of the whole help, a group's own (`--model NAME`) included."""
    found: dict[str, _Option] = {}
    flag = metavar = ""
    for line in lines:
        if re.match(r"  [A-Z_]+(?: |$)", line):  # a word before the flags
            flag = ""
        elif (head := re.match(r"(?:  )?--([\w.]+) ?(.*)", line)) is not None:
            flag, metavar = head.groups()
            text = ""
            if not line.startswith(
                "  "
            ):  # "--model NAME: geco, …", or "--fit: How a model is fitted.", which is no option
                metavar, colon, text = metavar.partition(": ")
                if not colon or metavar != "NAME":
                    flag = ""
                    continue
            found[flag] = _Option(flag, metavar, text)
        elif flag and line.startswith(" " * 8):
            found[flag] = _Option(flag, metavar, f"{found[flag].text} {line.strip()}".strip())
        elif not line.strip():
            flag = ""
    return found


def _headings(lines: Sequence[str]) -> dict[str, str]:
    """By group, the line that says what it is."""
    return {match[1]: line for line in lines if (match := re.match(r"--(\w+)(?: NAME)?: ?", line))}
