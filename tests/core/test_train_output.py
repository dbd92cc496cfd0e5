"""What ``train()`` returns: transformers' tuple, and a short form for people."""

from __future__ import annotations

import copy
import pickle

from trainwright.core.results import TrainOutput


def test_it_stays_the_tuple_of_three_that_transformers_returns() -> None:
    output = TrainOutput(3, 0.5, {"train_runtime": 1.0})
    assert tuple(output) == (3, 0.5, {"train_runtime": 1.0})
    assert output._fields == ("global_step", "training_loss", "metrics")
    assert repr(output) == "TrainOutput(global_step=3, training_loss=0.5, metrics={'train_runtime': 1.0})"
    assert output.report is None
    assert output.stopped_early is None


def test_print_says_why_it_ended_and_where_the_report_is() -> None:
    output = TrainOutput(1, float("nan"), {"train_runtime": 0.04, "train_samples_per_second": 3.21})
    output.stopped_early, output.report = "eval_loss has not improved since step 1", "runs/a/report.html"
    assert str(output).splitlines() == [
        "1 step in 0.0 s, training loss nan, 3.21 samples/s",
        "ended early: eval_loss has not improved since step 1",
        "report: runs/a/report.html",
    ]


def test_a_notebook_shows_a_table_in_which_nothing_is_markup() -> None:
    output = TrainOutput(7, 0.25, {"<b>": 1.0})
    output.stopped_early = "<script>"
    page = output._repr_html_()
    assert "7 steps, training loss 0.25" in page
    assert "<tr><td>&lt;b&gt;</td><td>1</td></tr>" in page
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


def test_what_is_known_beside_the_tuple_survives_copies_and_processes() -> None:
    output = TrainOutput(7, 0.25, {})
    output.stopped_early, output.report = "enough", "report.html"
    for other in (copy.deepcopy(output), pickle.loads(pickle.dumps(output))):  # noqa: S301
        assert (other.stopped_early, other.report, other) == ("enough", "report.html", output)
