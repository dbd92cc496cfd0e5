"""A sweep: what it tries, what it finds, and that it repeats."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from optuna.trial import TrialState
from safetensors.torch import load_file

from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.experiment.running import train
from trainwright.search.plan import read_plan
from trainwright.search.results import SweepResult, TrialResult, results_of
from trainwright.search.study import open_study
from trainwright.search.sweep import sweep

Run = Callable[..., SweepResult]
Describe = Callable[..., dict[str, Any]]


def facts(found: SweepResult) -> list[tuple[Any, ...]]:
    """All that must be the same of two runs of one study."""
    return [(one.number, one.state, one.values, one.settings, one.course, one.reason) for one in found.trials]


def test_it_tries_finds_and_repeats(swept: Run) -> None:
    first, again = swept("one"), swept("two")
    assert facts(first) == facts(again)
    assert len(first.trials) == 5
    assert len({one.settings["training.learning_rate"] for one in first.trials}) == 5
    for one in first.trials:
        assert 1e-4 <= one.settings["training.learning_rate"] <= 1e-1
        assert one.settings["model.options.width"] in range(4, 33, 4)
    done = [one for one in first.trials if one.state == "done"]
    assert first.best is not None
    assert first.best.values["accuracy"] == max(one.values["accuracy"] for one in done)
    assert facts(swept("three", seed=7)) != facts(first)


def test_the_value_is_that_of_the_model_which_is_kept(swept: Run) -> None:
    """The best's folder evaluates to its value, and best.yaml trains to it."""
    found = swept()
    assert found.best is not None
    assert found.best_experiment is not None
    loaded = load_experiment(found.best_experiment, [f"training.output_dir={found.folder.parent / 'anew'}"])
    assert loaded.experiment.search is None
    assert train(loaded, say=lambda line: None).metrics["eval_accuracy"] == found.best.values["accuracy"]
    anew, kept = (
        load_file(folder / "model.safetensors") for folder in (found.folder.parent / "anew", found.best.folder)
    )
    assert all(anew[name].equal(kept[name]) for name in kept)
    weights = {path.parent.name for path in found.folder.glob("*/model.safetensors")}
    assert weights == {found.best.folder.name}
    assert not list(found.folder.glob("trial-*/checkpoint-*")) or weights == {
        path.parent.name for path in found.folder.glob("trial-*/checkpoint-*")
    }


def test_more_trials_are_added_and_the_same_again_does_nothing(swept: Run) -> None:
    three = swept(trials=3)
    five = swept(trials=5)
    assert facts(five)[:3] == facts(three)
    assert facts(five) == facts(swept("other", trials=5))
    written = {path: path.stat().st_mtime_ns for path in five.folder.glob("trial-*/metrics.jsonl")}
    assert facts(swept(trials=5)) == facts(five)
    assert written == {path: path.stat().st_mtime_ns for path in five.folder.glob("trial-*/metrics.jsonl")}


def test_another_search_in_the_same_folder_is_refused(swept: Run, described: Describe) -> None:
    first = swept(trials=2)
    with pytest.raises(ConfigError, match=r"holds a study of something else: .*seed.*--fresh"):
        swept(trials=2, seed=9)
    fresh = sweep(described(trials=2, seed=9), fresh=True, say=lambda line: None)
    assert fresh.folder != first.folder
    assert len(fresh.trials) == 2


def test_conditions_and_a_grid(swept: Run) -> None:
    found = swept(
        method="grid",
        trials=None,
        space={
            "training.momentum_of_sgd": None,
        }
        and {
            "training.optim": ["sgd", "adamw_torch"],
            "training.adam_beta1": {"choices": [0.8, 0.9], "when": {"training.optim": "adamw_torch"}},
            "model.options.width": {"range": [8, 16], "step": 8},
        },
    )
    combinations = [tuple(one.settings.values()) for one in found.trials]
    assert combinations == [
        ("sgd", 8),
        ("sgd", 16),
        ("adamw_torch", 0.8, 8),
        ("adamw_torch", 0.8, 16),
        ("adamw_torch", 0.9, 8),
        ("adamw_torch", 0.9, 16),
    ]
    assert all("training.adam_beta1" not in one.settings for one in found.trials[:2])


def test_lists_and_mappings_can_be_chosen(swept: Run) -> None:
    space = {"model.options": [{"width": 4, "layers": 1}, {"width": 8, "layers": 2}]}
    found = swept(space=space, method="grid", trials=None)
    sizes = [one.measured["parameters"] for one in found.trials if one.measured]
    assert sizes == [64 * 4 + 4 + 4 * 10 + 10, 64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10]


def test_models_over_a_limit_are_not_trained_and_do_not_count(swept: Run) -> None:
    found = swept(limits={"parameters": 1000}, trials=4)
    over = [one for one in found.trials if one.state == "over a limit"]
    trained = [one for one in found.trials if one.state != "over a limit"]
    assert over
    assert len(trained) == 4
    assert all(one.measured is not None and one.measured["parameters"] <= 1000 for one in trained)
    assert all(not (one.folder / "metrics.jsonl").exists() for one in over)
    assert "parameters is" in str(over[0].reason)


def test_limits_that_nothing_meets_end_with_an_error(swept: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.search.study.MOST_IN_VAIN", 4)
    with pytest.raises(ConfigError, match=r"4 models in a row could not be tried.*Raise search\.limits"):
        swept(limits={"parameters": 10})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tpe", "nsga2"])
def test_several_metrics_have_a_front(swept: Run, method: str) -> None:
    found = swept(metric={"accuracy": "maximize", "parameters": "minimize"}, trials=8, method=method)
    assert len(found.front) > 1

    def beaten(one: TrialResult) -> bool:
        return any(
            other.values["accuracy"] >= one.values["accuracy"]
            and other.values["parameters"] <= one.values["parameters"]
            and other.values != one.values
            for other in found.trials
        )

    assert {one.number for one in found.trials if not beaten(one)} == {one.number for one in found.front}
    assert found.best is not None
    assert found.best.values["accuracy"] == max(one.values["accuracy"] for one in found.trials)
    kept = {path.parent for path in found.folder.glob("*/model.safetensors")}
    assert kept == {one.folder for one in found.front}


def test_what_goes_nowhere_ends_early(swept: Run) -> None:
    space = {"training.learning_rate": [3e-2, 1e-9], "training.adam_beta1": [0.9, 0.8, 0.7, 0.6]}
    found = swept(space=space, method="grid", trials=None, training={"num_train_epochs": 4})
    pruned = [one for one in found.trials if one.state == "pruned"]
    assert pruned
    assert 1e-9 in {one.settings["training.learning_rate"] for one in pruned}
    assert all(len(one.course) < 4 for one in pruned)
    never = swept("never", space=space, method="grid", trials=6, prune="none", training={"num_train_epochs": 4})
    assert [one.state for one in never.trials] == ["done"] * 6


def test_a_training_that_breaks_does_not_end_the_sweep(swept: Run) -> None:
    space = {"model.options.width": [8, 0.5, 16, 4]}
    found = swept(space=space, method="grid", trials=None)
    assert [one.state for one in found.trials] == ["done", "impossible", "done", "done"]
    diverging = swept("wild", space={"training.learning_rate": [1e-2, 1e30, 2e-2]}, method="grid", trials=None)
    assert [one.state for one in diverging.trials][1] in ("diverged", "done")
    assert diverging.best is not None
    assert math.isfinite(diverging.best.values["accuracy"])


def test_weights_are_handed_down(swept: Run) -> None:
    found = swept(inherit=True, trials=4, prune="none", keep="all", training={"num_train_epochs": 1})
    assert found.trials[0].parent is None
    best = 0
    for one in found.trials[1:]:
        assert one.parent == best
        if one.values["accuracy"] > found.trials[best].values["accuracy"]:
            best = one.number
    first, then = found.trials[0], found.trials[1]
    handed = load_file(then.folder / "inherited.safetensors")
    mother = load_file(first.folder / "model.safetensors")
    assert all(handed[name].equal(mother[name]) for name in mother)
    assert facts(swept("again", inherit=True, trials=4, prune="none", training={"num_train_epochs": 1})) == facts(found)


def test_the_folder_tells_everything(swept: Run) -> None:
    found = swept(trials=9, prune="none", training={"num_train_epochs": 1})
    stored = json.loads((found.folder / "sweep.json").read_text())
    assert stored["state"] == "finished"
    assert [one["values"] for one in stored["trials"]] == [one.values for one in found.trials]
    assert found.importance
    assert math.isclose(sum(found.importance.values()), 1.0, abs_tol=1e-6)
    assert found.report is not None
    page = found.report.read_text()
    assert page.count("<svg") + page.count("data:image/svg+xml") >= 3
    for one in found.trials:
        assert f"{one.settings['model.options.width']}" in page
    assert yaml.safe_load((found.folder / "best.yaml").read_text())["name"] == "tiny-best"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"space": {}}, "it is empty: name settings"),
    ({"space": {"training.learning_rat": [1e-3]}}, "did you mean 'learning_rate'"),
    ({"space": {"learning_rate": [1e-3]}}, "such as training.learning_rate"),
    ({"space": {"training.learning_rate": 1e-3}}, "should be a list of choices"),
    ({"space": {"training.learning_rate": {"rang": [1, 2]}}}, "did you mean 'range'"),
    ({"space": {"training.learning_rate": {"range": [2, 1]}}}, "the first should be less"),
    ({"space": {"training.learning_rate": {"log_range": [0, 1]}}}, "begins above zero"),
    ({"space": {"training.learning_rate": ["fast"]}}, "learning_rate"),
    ({"space": {"training.seed": [1, True]}}, "is there twice"),
    ({"space": {"training.output_dir": ["a", "b"]}}, "cannot be searched"),
    ({"space": {"training.adam_beta1": {"choices": [0.5], "when": {"training.optim": "sgd"}}}}, "is not searched"),
    ({"space": {"model.options": [{"width": 1}], "model.options.width": [1, 2]}}, "is a part of it"),
    ({"method": "tpee"}, "did you mean 'tpe'"),
    ({"method": "grid"}, "a grid needs choices"),
    ({"prune": "halving"}, "should be one of median"),
    ({"metric": {"accuracy": "up"}}, "should be maximize or minimize"),
    ({"metric": "acuracy"}, "did you mean 'accuracy'"),
    ({"metric": {"accuracy": "maximize", "f1": "maximize"}, "prune": "median"}, "write none"),
    ({"limits": {"weights": 3}}, "only parameters, flops, latency_ms"),
    ({"timeout": "soon"}, "such as 30 minutes"),
    ({"trials": 0}, "should be 1 or more"),
    ({"spase": {}}, "did you mean 'space'"),
    ({"storage": "redis"}, "should be one of sqlite, journal"),
    ({"keep": "none"}, "should be one of best, all"),
]


@pytest.mark.parametrize(("search", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_said_before_the_first_trial(swept: Run, search: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        swept(**search)


def test_code_in_a_choice_needs_trust(swept: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
        "from trainwright.experiment.networks import Perceptron\n"
    )
    space = {"model.name": ["mlp", f"{tmp_path / 'net.py'}:Perceptron"]}
    with pytest.raises(ConfigError, match="would run code because a file says so"):
        swept(space=space)
    assert not (tmp_path / "ran").exists()
    trusted = swept("trusted", space=space, method="grid", trials=None, options={"trust": True})
    assert [one.state for one in trusted.trials] == ["done", "done"]


def test_the_command_line_cannot_set_what_is_searched(described: Describe) -> None:
    with pytest.raises(ConfigError, match=r"the command line sets it, and search\.space"):
        sweep(described(), overrides=["training.learning_rate=1e-3"], say=lambda line: None)


def test_a_training_says_that_it_passes_the_search_over(
    described: Describe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(described(), sort_keys=False))
    train(load_experiment(path), say=lambda line: None)
    assert "trainwright sweep" in caplog.text
    assert "search" not in yaml.safe_load((tmp_path / "tiny" / "experiment.yaml").read_text())


# ---- processes


KILLED = """
import os, signal, sys, yaml
from trainwright.search import study, sweep, trial
from trainwright.core.callback import TrainerCallback
from trainwright.trainer.trainer import Trainer

def die():
    os.kill(os.getpid(), signal.SIGKILL)

where, number, description = sys.argv[1], int(sys.argv[2]), yaml.safe_load(open(sys.argv[3]))
if where == "in an epoch":
    class Killer(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 5 and str(args.output_dir).endswith(f"{number:04d}"):
                die()
    made = Trainer.__init__
    def init(self, *args, **kwargs):
        made(self, *args, **kwargs)
        self.add_callback(Killer())
    Trainer.__init__ = init
if where == "before it is settled":
    settled = sweep.settle
    sweep.settle = lambda study, work, ending: die() if work.number == number else settled(study, work, ending)
if where == "while it is chosen":
    from trainwright.search.space import Range
    suggest, calls = Range.suggest, []
    def counting(self, trial, name):
        calls.append(name)
        value = suggest(self, trial, name)
        return die() if len(calls) == 2 * number + 1 else value
    Range.suggest = counting
sweep.sweep(description, say=print)
"""


def killed(where: str, number: int, description: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "description.yaml").write_text(yaml.safe_dump(description, sort_keys=False))
    (tmp_path / "killed.py").write_text(KILLED)
    words = [sys.executable, str(tmp_path / "killed.py"), where, str(number), str(tmp_path / "description.yaml")]
    # The last bits depend on how many threads add up.
    threads = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, env=threads)
    assert done.returncode == -9, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        "before it is settled",
        *(pytest.param(where, marks=pytest.mark.full) for where in ("in an epoch", "while it is chosen")),
    ],
)
def test_a_kill_changes_nothing(swept: Run, described: Describe, tmp_path: Path, where: str) -> None:
    straight = swept("straight", trials=4, inherit=where == "before it is settled")
    description = described("killed", trials=4, inherit=where == "before it is settled")
    killed(where, 2, description, tmp_path)
    resumed = sweep(description, say=lambda line: None)
    assert facts(resumed) == facts(straight)
    assert resumed.best is not None
    assert straight.best is not None
    one, other = (load_file(found.best.folder / "model.safetensors") for found in (resumed, straight) if found.best)
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["sqlite", pytest.param("journal", marks=pytest.mark.full)])
def test_two_workers_share_the_trials(swept: Run, described: Describe, storage: str) -> None:
    together = swept("together", trials=6, storage=storage, method="random", options={"workers": 2})
    assert sorted(one.number for one in together.trials) == list(range(6))
    assert all(one.state in ("done", "pruned") for one in together.trials)
    alone = swept("alone", trials=6, method="random", prune="none")
    # Chosen by number: the same values, and the same numbers of those that came to their end.
    for one, other in zip(together.trials, alone.trials, strict=True):
        assert one.settings == other.settings
        assert one.state == "pruned" or one.values == other.values


@pytest.mark.slow
def test_a_trial_in_two_processes(swept: Run) -> None:
    both = swept("both", trials=1, options={"processes": 2}, training={"per_device_train_batch_size": 8})
    one = swept("one", trials=1, training={"per_device_train_batch_size": 16})
    assert both.trials[0].state == "done"
    assert both.trials[0].settings == one.trials[0].settings
    assert both.trials[0].values["accuracy"] == pytest.approx(one.trials[0].values["accuracy"], abs=0.05)
    assert os.path.exists(both.trials[0].folder / "model.safetensors")


def test_phases_that_no_training_would_take_are_refused_before_the_first_trial(tmp_path: Path) -> None:
    described = {
        "model": {"name": "mlp"},
        "data": {"train": "digits"},
        "training": {"output_dir": str(tmp_path / "run")},
        "phases": {"a": {"epochs": 1}, "b": {"epochs": 1}},
        "search": {"method": "grid", "space": {"phases.b.epochs": [0, 1]}},
    }
    with pytest.raises(ConfigError, match="'b' has epochs=0: give a whole number of at least 1"):
        sweep(described)
    assert not list(tmp_path.iterdir())


def test_a_trial_that_ends_between_two_looks_is_shown_as_it_is(swept: Run, described: Describe, tmp_path: Path) -> None:
    """Another worker may end the best trial while results are put together."""
    swept("looks", trials=2)
    file = tmp_path / "looks.yaml"
    file.write_text(yaml.safe_dump(described("looks", trials=2), sort_keys=False))
    plan = read_plan(load_experiment(file))
    study = open_study(plan)

    class Earlier:
        """The study as it was before its best trial ended, at the first look alone."""

        looks = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(study, name)

        def get_trials(self, **options: Any) -> list[Any]:
            self.looks += 1
            found = study.get_trials(deepcopy=True)
            if self.looks == 1:
                for trial in found:
                    trial.state, trial.values = TrialState.RUNNING, None
            return found

    found = results_of(plan, Earlier())
    assert found.best is not None
    assert found.best.values["accuracy"] == max(one.values["accuracy"] for one in found.trials)
