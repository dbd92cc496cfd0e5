"""Trainings in phases: what each is trained with, and that a resume goes on exactly in any of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.models import Plain, classification_rows
from trainwright import Phase, Trainer, TrainerCallback, TrainingArguments
from trainwright.core.phases import PhasePlan, condition_of

FIRST, SECOND = classification_rows(12, seed=1), classification_rows(22, seed=2)


class Watch(TrainerCallback):
    """Notes before each step what it is made with."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.trained: list[list[str]] = []
        self.decays: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        group = kwargs["optimizer"].param_groups[0]
        self.rates.append(group["lr"])
        self.decays.append(group["weight_decay"])
        self.trained.append([name for name, one in kwargs["model"].named_parameters() if one.requires_grad])


class Dropping(Plain):
    """Draws random numbers, so that a resume has to find them too."""

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.dropout(torch.tanh(self.first(x)), 0.2, self.training))


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    options: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "weight_decay": 0.01,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "write_report": False,
        **more,
    }
    return TrainingArguments(str(folder), **options)


def two_phases(**second: Any) -> list[Phase]:
    options: dict[str, Any] = {"learning_rate": 1e-3, "train_dataset": SECOND, "lr_scheduler_type": "cosine", **second}
    return [Phase("head", epochs=2, trainable=["re:second"]), Phase("all", epochs=2, **options)]


def trainer(folder: Path, phases: list[Phase], watch: Watch | None = None, **more: Any) -> Trainer:
    model = more.pop("model", None) or Dropping()
    return Trainer(
        model,
        arguments(folder, **more),
        train_dataset=FIRST,
        eval_dataset=SECOND,
        callbacks=[] if watch is None else [watch],
        phases=phases,
    )


def state_of(one: Trainer) -> list[torch.Tensor]:
    weights = list(one.model.parameters())
    kept = [value for weight in weights for _, value in sorted(one.optimizer.state[weight].items())]
    return [weight.detach() for weight in weights] + kept


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(a.equal(b) for a, b in zip(one, other, strict=True))


def test_each_phase_has_its_rates_its_data_and_its_parameters(tmp_path: Path) -> None:
    watch = Watch()
    seen: list[int] = []

    class Counts(Dropping):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
            seen.append(len(x))
            return super().forward(x, labels)

    run = trainer(tmp_path, two_phases(warmup_steps=2), watch, model=Counts())
    run.train()
    assert (run.state.global_step, run.state.max_steps, run.state.epoch) == (18, 18, 4.0)
    assert (
        watch.trained
        == [["second.weight", "second.bias"]] * 6
        + [["first.weight", "first.bias", "second.weight", "second.bias"]] * 12
    )
    assert watch.rates[:6] == pytest.approx([1e-2 * (6 - step) / 6 for step in range(6)])
    cosine = [0.0, 0.5e-3] + [0.5e-3 * (1 + torch.tensor(torch.pi * step / 10).cos().item()) for step in range(10)]
    assert watch.rates[6:] == pytest.approx(cosine, abs=1e-9)
    assert seen == [4, 4, 4] * 2 + [4, 4, 4, 4, 4, 2] * 2


def test_phases_that_change_nothing_are_a_plain_training(tmp_path: Path) -> None:
    options: dict[str, Any] = {"lr_scheduler_type": "constant", "num_train_epochs": 4}
    plain = Trainer(Dropping(), arguments(tmp_path / "plain", **options), train_dataset=FIRST)
    plain.train()
    phased = trainer(tmp_path / "phased", [Phase("one", 1), Phase("two", 3)], **options)
    phased.train()
    assert same(state_of(plain), state_of(phased))


def test_frozen_parameters_rest_and_decay_nothing(tmp_path: Path) -> None:
    before = {name: one.clone() for name, one in Dropping().named_parameters()}
    run = trainer(tmp_path, [Phase("head", 2, freeze="re:first")])
    run.train()
    changed = [name for name, one in run.model.named_parameters() if not one.equal(before[name])]
    assert changed == ["second.weight", "second.bias"]
    assert all(one.requires_grad for one in run.model.parameters()), "afterwards they are as they were"


@pytest.mark.parametrize("phases", [two_phases(), two_phases(fresh_optimizer=True, weight_decay=0.1)])
def test_a_resume_at_any_step_ends_with_the_same_bits(tmp_path: Path, phases: list[Phase]) -> None:
    whole = trainer(tmp_path, phases, save_strategy="steps", save_steps=1)
    whole.train()
    for step in range(1, 18):
        watch = Watch()
        again = trainer(tmp_path / f"from-{step}", phases, watch)
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert len(watch.rates) == 18 - step
        assert same(state_of(again), state_of(whole)), step
        assert [e["loss"] for e in again.state.log_history if "loss" in e] == [
            e["loss"] for e in whole.state.log_history if "loss" in e
        ]


def test_a_phase_ends_when_its_bound_is_reached_also_across_a_resume(tmp_path: Path) -> None:
    phases = [Phase("first", 5, until="eval_loss < 100"), Phase("second", 2, train_dataset=SECOND)]
    options: dict[str, Any] = {"eval_strategy": "epoch"}
    whole = trainer(tmp_path, phases, save_strategy="steps", save_steps=1, **options)
    whole.train()
    # One epoch of three steps, then two of six.
    assert (whole.state.global_step, whole.state.max_steps, whole.state.epoch) == (15, 15, 3.0)
    for step in range(1, 15):
        again = trainer(tmp_path / f"from-{step}", phases, **options)
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert again.state.global_step == 15
        assert same(state_of(again), state_of(whole)), step


def test_a_bound_that_an_evaluation_shows_in_the_middle_lets_the_epoch_end(tmp_path: Path) -> None:
    phases = [Phase("first", 5, until="loss < 100"), Phase("second", 1)]
    run = trainer(tmp_path, phases, eval_strategy="steps", eval_steps=2)
    run.train()
    assert (run.state.global_step, run.state.epoch) == (6, 2.0)


def test_a_second_training_has_all_epochs_again(tmp_path: Path) -> None:
    phases = [Phase("first", 3, until="loss < 100"), Phase("second", 1)]
    run = trainer(tmp_path, phases, eval_strategy="epoch")
    run.train()
    assert run.state.global_step == 6
    run.train()
    assert run.state.global_step == 6


def test_a_fresh_optimizer_is_as_one_that_has_seen_nothing(tmp_path: Path) -> None:
    """A phase then goes as a run of its own that begins with the weights."""
    options: dict[str, Any] = {"lr_scheduler_type": "constant", "train_sampling_strategy": "sequential"}
    whole = trainer(
        tmp_path / "both", [Phase("one", 1), Phase("two", 2, fresh_optimizer=True)], model=Plain(), **options
    )
    whole.train()
    one = trainer(tmp_path / "one", [Phase("one", 1)], model=Plain(), **options)
    one.train()
    alone = Trainer(one.model, arguments(tmp_path / "two", num_train_epochs=2, **options), train_dataset=FIRST)
    alone.train()
    assert same(state_of(whole), state_of(alone))


def test_the_last_phase_may_be_made_longer_and_an_earlier_one_may_not(tmp_path: Path) -> None:
    short = trainer(tmp_path, two_phases(), save_strategy="epoch")
    short.train()
    longer = [two_phases()[0], Phase("all", epochs=3, train_dataset=SECOND, learning_rate=1e-3)]
    more = trainer(tmp_path, longer)
    more.train(resume_from_checkpoint=True)
    assert (more.state.global_step, more.state.epoch) == (24, 5.0)
    for changed, problem in (
        ([Phase("head", epochs=3, trainable=["re:second"]), two_phases()[1]], "'head' is over and had 2 epochs"),
        ([Phase("other", epochs=2, trainable=["re:second"]), two_phases()[1]], "in its phase 'all', after head"),
    ):
        with pytest.raises(ValueError, match=problem):
            trainer(tmp_path, changed).train(resume_from_checkpoint=True)


def test_what_happened_is_in_the_event_log(tmp_path: Path) -> None:
    run = trainer(tmp_path, two_phases())
    run.train()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    begun = [(one["phase"], one["step"], one["trained_parameters"]) for one in events if one["kind"] == "phase"]
    assert begun == [("head", 0, 27), ("all", 6, 83)]
    assert {entry["phase"] for entry in run.state.log_history if "loss" in entry} == {1.0, 2.0}


def test_accumulated_batches_and_samples_left_over(tmp_path: Path) -> None:
    whole = trainer(tmp_path, two_phases(), gradient_accumulation_steps=2, save_strategy="steps", save_steps=1)
    whole.train()
    assert whole.state.global_step == 2 * 2 + 2 * 3
    for step in (1, 4, 5, 9):
        again = trainer(tmp_path / f"from-{step}", two_phases(), gradient_accumulation_steps=2)
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert same(state_of(again), state_of(whole)), step


Given = Callable[[], list[Phase]]


@pytest.mark.parametrize(
    ("given", "more", "problem"),
    [
        (lambda: [Phase("a", epochs=0)], {}, "epochs=0: give a whole number of at least 1"),
        (lambda: [Phase("", epochs=1)], {}, "A phase needs a name"),
        (lambda: [Phase("a", epochs=1, trainable="re:a", freeze="re:b")], {}, "keep one"),
        (lambda: [Phase("a", epochs=1, learning_rate=-1.0)], {}, "learning_rate=-1.0: give a number"),
        (lambda: [Phase("a", epochs=1, until="good")], {}, "a metric and a bound"),
        (lambda: [Phase("a", 1), Phase("a", 1)], {}, "different names"),
        (lambda: [], {}, "at least one"),
        (lambda: ["a"], {}, "takes a list of trainwright.Phase"),
        (lambda: [Phase("a", 1)], {"max_steps": 5}, "max_steps=5 says otherwise"),
        (lambda: [Phase("a", 1, lr_scheduler_type="cosin")], {}, "cosin"),
        (lambda: [Phase("a", 1, lr_scheduler_type="reduce_lr_on_plateau")], {}, "no function of the step"),
        (lambda: [Phase("a", 1, weight_decay=0.1)], {"weight_decay": 0.0}, "some parameters decay"),
    ],
)
def test_what_cannot_be_is_refused_at_once(tmp_path: Path, given: Given, more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        trainer(tmp_path, given(), **more)


@pytest.mark.parametrize(
    ("phases", "problem"),
    [
        ([Phase("a", 1, trainable="re:nothing")], "'a': trainable: 're:nothing' fits nothing"),
        ([Phase("a", 1, freeze=["re:first", "re:second"])], "trains no parameter"),
        ([Phase("a", 1, train_dataset=[])], "has no samples"),
    ],
)
def test_what_the_model_or_the_data_lacks_is_refused_before_the_first_step(
    tmp_path: Path, phases: list[Phase], problem: str
) -> None:
    run = trainer(tmp_path, phases)
    with pytest.raises(ValueError, match=problem):
        run.train()
    assert run.state.global_step == 0


def test_loaders_of_ones_own_and_streams_are_refused(tmp_path: Path) -> None:
    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(cast(Any, FIRST), batch_size=4)

    with pytest.raises(ValueError, match="get_train_dataloader is overridden"):
        Own(Plain(), arguments(tmp_path), phases=[Phase("a", 1)]).train()

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(FIRST)

    with pytest.raises(ValueError, match="has no length"):
        Trainer(Plain(), arguments(tmp_path), train_dataset=Stream(), phases=[Phase("a", 1)]).train()


def test_a_number_of_epochs_that_does_not_act_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="phases train for 4 epochs: num_train_epochs=7 does not act"):
        trainer(tmp_path, two_phases(), num_train_epochs=7)


def test_no_warning_says_that_a_recipe_sets_the_rate(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    trainer(tmp_path, two_phases()).train()
    assert not [str(one.message) for one in recwarn if "recipe" in str(one.message)]


def test_a_recipe_counts_its_epochs_over_all_phases(tmp_path: Path) -> None:
    recipe = """
    modifiers:
      - !MagnitudePruningModifier
        init_sparsity: 0.0
        final_sparsity: 0.5
        start_epoch: 2
        end_epoch: 4
        update_frequency: 1
        params: [first.weight]
    """
    run = Trainer(Plain(), arguments(tmp_path), train_dataset=FIRST, recipe=recipe, phases=two_phases())
    run.train()
    assert float((run.model.first.weight == 0).float().mean()) == pytest.approx(0.5, abs=0.03)
    with pytest.raises(ValueError, match="phases have 3 epochs together"):
        Trainer(Plain(), arguments(tmp_path), train_dataset=FIRST, recipe=recipe, phases=[Phase("a", 3)])


def test_batch_statistics_of_a_resumed_phase(tmp_path: Path) -> None:
    class Normed(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def logits(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.norm(self.first(x)))

    torch.manual_seed(0)
    whole = trainer(tmp_path, two_phases(), model=Normed(), save_strategy="steps", save_steps=5)
    whole.train()
    again = trainer(tmp_path / "again", two_phases(), model=Normed())
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert again.model.state_dict()["norm.running_mean"].equal(whole.model.state_dict()["norm.running_mean"])


def test_conditions() -> None:
    assert condition_of("eval_loss < 0.5").holds({"eval_loss": 0.4})
    assert not condition_of("eval_loss<0.5").holds({"eval_loss": float("nan")})
    assert not condition_of("accuracy >= 1e-1").holds({"eval_loss": 0.4})


def test_a_plan_of_one_phase_covers_everything() -> None:
    plan = PhasePlan([Phase("a", 2)])
    assert [plan.number_at(epoch) for epoch in (0, 1, 1.99, 2, 5)] == [0] * 5


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trainwright")
