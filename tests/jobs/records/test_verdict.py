"""Tests the comparison of final scores with baselines: which scores print a warning, and which scores end a job with status 1."""

import pytest

from graphmill.jobs.records.verdict import end_of_run, judge

WEAK = {"valid": 0.2, "test": 0.2}


def test_a_score_below_a_baseline_is_a_warning_and_an_error_only_where_it_must_not_be(capsys):
    summary = judge(
        "accuracy", {"valid": 0.5, "test": 0.3}, {"majority": WEAK, "features_only": {"valid": 0.4, "test": 0.4}}
    )
    assert summary["beats_baselines"] is False
    (text,) = summary["warnings"]
    assert text == "test accuracy 0.3000 does not beat the baseline 'features only' (0.4000)"
    assert end_of_run(summary, require_baselines=False) == 0
    assert capsys.readouterr().err == f"warning: {text}\n"
    assert end_of_run(summary, require_baselines=True) == 1
    assert capsys.readouterr().err == f"error: {text} (--run.require_baselines)\n"


@pytest.mark.parametrize("required", [False, True])
def test_a_score_above_its_baselines_says_nothing(capsys, required):
    summary = judge("accuracy", {"valid": 0.5, "test": 0.5}, {"majority": WEAK, "features_only": None})
    assert summary["beats_baselines"] is True
    assert end_of_run(summary, require_baselines=required) == 0
    assert capsys.readouterr() == ("", "")


def test_errors_are_better_when_lower_and_the_validation_split_stands_in_for_a_test_split():
    worse = judge("mae", {"valid": 1.0}, {"constant": {"valid": 0.5}}, higher_is_better=False)
    assert (worse["judged_by"], worse["beats_baselines"]) == ("valid", False)
    assert judge("mae", {"valid": 0.1}, {"constant": {"valid": 0.5}}, higher_is_better=False)["beats_baselines"] is True
    equal = judge("mae", {"valid": 0.5}, {"constant": {"valid": 0.5}}, higher_is_better=False)
    assert equal["beats_baselines"] is False


def test_estimates_are_no_scores():
    summary = judge("accuracy", {"valid": 0.5, "test": 0.1}, {"majority": WEAK}, estimate="in 16 chunks")
    assert "scores" not in summary
    assert summary["estimates"] == {"valid": 0.5, "test": 0.1}
    assert summary["estimate"] == "in 16 chunks"
    assert summary["warnings"] == [
        "test accuracy (estimate) 0.1000 does not beat the baseline 'majority class' (0.2000)"
    ]
    assert summary["beats_baselines"] is None


def test_an_estimate_above_its_baselines_proves_nothing():
    summary = judge("accuracy", {"valid": 0.5, "test": 0.5}, {"majority": WEAK}, estimate="in 16 chunks")
    assert summary["beats_baselines"] is None
    assert summary["warnings"] == []
    assert end_of_run(summary, require_baselines=False) == 0
    assert end_of_run(summary, require_baselines=True) == 1
