"""Compares a run's final scores with its baselines, for the summary and the exit status.

The exit status says whether the program worked. A score that does not beat a baseline gives a warning. With `--run.require_baselines` such a score is an
error.
"""

import sys
from collections.abc import Mapping
from typing import Any

BASELINE_NAMES = {
    "majority": "majority class",
    "features_only": "features only",
    "constant": "mean of the training targets",
    "composition": "composition only",
    "shares": "shares of the classes",
    "equal": "equal scores",
    "common_neighbors": "common neighbors",
    "paths_of_three": "paths of three edges",
    "gcn": "GCN",
    "gat": "GAT",
    "sage": "GraphSAGE",
    "trees": "boosted trees",
}


def metric_of_one(metric: str) -> str:
    """Name of the score of a single target or label, if `metric` is the average of such scores: f1 for micro_f1 and macro_f1."""
    return metric.removeprefix("micro_").removeprefix("macro_")


def judge(
    metric: str,
    scores: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float] | None],
    *,
    higher_is_better: bool = True,
    estimate: str | None = None,
) -> dict[str, Any]:
    """Entries of the summary: the final scores by split and the baselines, in the same metric, and whether the scores beat the baselines.

    The test split decides, or the validation split if the test split has no targets. `estimate`: why the scores are estimates; None: the scores are exact.
    Estimates are stored as `estimates`: no program can take them for `scores`. `beats_baselines` is then None, because estimates prove nothing.
    """
    judged = "test" if "test" in scores else "valid"
    sign = 1.0 if higher_is_better else -1.0
    label = f"{metric} (estimate)" if estimate is not None else metric
    warnings = [
        f"{judged} {label} {scores[judged]:.4f} does not beat the baseline {BASELINE_NAMES[name]!r} ({rival[judged]:.4f})"
        for name, rival in baselines.items()
        if rival is not None and not sign * scores[judged] > sign * rival[judged]
    ]
    named = {"scores": dict(scores)} if estimate is None else {"estimates": dict(scores), "estimate": estimate}
    return {
        "metric": metric,
        **({} if higher_is_better else {"higher_is_better": False}),
        **named,
        "baselines": dict(baselines),
        "judged_by": judged,
        "beats_baselines": not warnings if estimate is None else None,
        "warnings": warnings,
    }


def end_of_run(summary: Mapping[str, Any], *, require_baselines: bool) -> int:
    """Prints the warnings of the summary as the last lines of the output. Returns the exit status of the job."""
    sys.stdout.flush()
    failed = require_baselines and not summary["beats_baselines"]
    for text in summary["warnings"]:
        print(f"error: {text} (--run.require_baselines)" if failed else f"warning: {text}", file=sys.stderr)
    return int(failed)
