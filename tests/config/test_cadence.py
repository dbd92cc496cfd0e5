"""When something is due: the language, and what it means."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright import TrainingArguments
from trainwright.config.cadence import NEVER, Every, RunProgress
from trainwright.core.state import TrainerState

UNITS = ["step", "steps", "epoch", "epochs", "evals", "evaluations", "seconds", "minutes", "hours", "days", "%", "run"]


@st.composite
def cadence_texts(draw: st.DrawFn) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        unit = draw(st.sampled_from(UNITS))
        if unit in ("%", "run"):
            parts.append(f"{draw(st.integers(1, 99)) / (1 if unit == '%' else 100)} {unit}")
        elif unit in ("step", "steps", "evals", "evaluations"):
            parts.append(f"{draw(st.integers(1, 10**6))}{draw(st.sampled_from(['', 'k']))} {unit}")
        else:
            parts.append(f"{draw(st.integers(1, 10**6)) / draw(st.sampled_from([1, 2, 10, 1000]))} {unit}")
    return " or ".join(parts)


moments = st.builds(
    RunProgress,
    step=st.integers(0, 5000),
    epoch=st.floats(0, 50),
    evaluations=st.integers(0, 100),
    seconds=st.floats(0, 1e5),
    max_steps=st.just(5000),
    epoch_end=st.booleans(),
)


@given(cadence_texts())
def test_text_round_trips(text: str) -> None:
    every = Every.parse(text)
    assert Every.parse(str(every)) == every
    assert hash(Every.parse(str(every))) == hash(every)
    assert pickle.loads(pickle.dumps(every)) == copy.deepcopy(every) == every  # noqa: S301


@given(cadence_texts(), moments)
def test_never_twice_at_the_same_moment(text: str, now: RunProgress) -> None:
    assert not Every.parse(text).due(now, now)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("500 steps", "500 steps"),
        ("1 step", "1 step"),
        ("1k steps", "1000 steps"),
        ("1.5K Steps", "1500 steps"),
        ("1 epochs", "1 epoch"),
        (".5 epoch", "0.5 epochs"),
        ("3 evaluations", "3 evals"),
        ("10min or 2h or 30 sec", "10 minutes or 2 hours or 30 seconds"),
        ("10%", "10%"),
        ("0.1 run", "10%"),
        ("0.07 run", "7%"),
        ("  500   steps  OR 1 epoch ", "500 steps or 1 epoch"),
        ("never", "never"),
    ],
)
def test_spellings(text: str, shown: str) -> None:
    assert str(Every.parse(text)) == shown


@pytest.mark.parametrize(
    "text",
    ["", "500", "steps", "5 parsecs", "-5 steps", "0 steps", "0.5 steps", "101%", "5 steps and 1 epoch", "1.5 evals"],
)
def test_what_is_not_understood_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r'"(500 steps|never|10%)"|no more than 100%'):
        Every.parse(text)


def test_a_bare_number_is_refused() -> None:
    number: Any = 500
    with pytest.raises(ValueError, match='"500 steps"'):
        Every.parse(number)


def walk(every: Every, moments: list[RunProgress]) -> list[RunProgress]:
    """The moments at which it is due, one after the other."""
    last, due = RunProgress(max_steps=moments[0].max_steps), []
    for now in moments:
        if every.due(now, last):
            due.append(now)
            last = now
    return due


@given(st.integers(1, 50), st.integers(1, 300))
def test_steps_are_due_at_the_multiples(interval: int, length: int) -> None:
    due = walk(Every.parse(f"{interval} steps"), [RunProgress(step=n, max_steps=length) for n in range(1, length + 1)])
    assert [moment.step for moment in due] == list(range(interval, length + 1, interval))


@given(st.integers(1, 999), st.integers(1, 2000))
def test_shares_resolve_as_the_state_resolves_them(thousandths: int, length: int) -> None:
    share = thousandths / 1000
    state = TrainerState()
    state.compute_steps(TrainingArguments("out", logging_steps=share, eval_steps=share, save_steps=share), length)
    assert Every.from_strategy("steps", thousandths / 1000).step_interval(length) == state.save_steps
    assert Every.parse(f"{thousandths / 10}%").step_interval(length) == state.save_steps
    assert state.save_steps == math.ceil(length * (thousandths / 1000))


@given(st.integers(1, 40), st.integers(1, 6), st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.75, 1.5]))
def test_fractions_of_epochs_are_due_when_a_multiple_is_passed(batches: int, epochs: int, amount: float) -> None:
    steps = [RunProgress(step=n, epoch=n / batches) for n in range(1, batches * epochs + 1)]
    due = walk(Every.parse(f"{amount} epochs"), steps)
    tenths = round(amount * 1000)
    passed = [n * 1000 // (tenths * batches) for n in range(batches * epochs + 1)]
    assert [moment.step for moment in due] == [n for n in range(1, len(passed)) if passed[n] > passed[n - 1]]


def test_whole_epochs_are_due_at_their_ends_only() -> None:
    run = [
        RunProgress(step=n, epoch=n / 5, epoch_end=end)
        for n in range(1, 21)
        for end in (False, True)
        if not end or n % 5 == 0
    ]
    assert [m.step for m in walk(Every.parse("1 epoch"), run)] == [5, 10, 15, 20]
    assert [m.step for m in walk(Every.parse("2 epochs"), run)] == [10, 20]
    assert all(m.epoch_end for m in walk(Every.parse("1 epoch"), run))


def test_an_epoch_that_is_cut_short_ends_too() -> None:
    assert Every.parse("1 epoch").due(RunProgress(step=3, epoch=0.6, epoch_end=True), RunProgress())


@given(st.integers(1, 5), st.integers(0, 30))
def test_evaluations_are_due_at_the_multiples(interval: int, before: int) -> None:
    every, last = Every.parse(f"{interval} evals"), RunProgress(evaluations=before)
    due = []
    for count in range(before + 1, before + 20):
        now = RunProgress(step=count, evaluations=count)
        if every.due(now, last):
            due.append(count)
            last = now
    assert due == [count for count in range(before + 1, before + 20) if count % interval == 0]


def test_minutes_count_from_the_last_time() -> None:
    every = Every.parse("2 minutes")
    assert not every.due(RunProgress(step=9, seconds=119.0), RunProgress())
    assert every.due(RunProgress(step=9, seconds=120.0), RunProgress())
    assert not every.due(RunProgress(step=99, seconds=200.0), RunProgress(step=9, seconds=120.0))


def test_any_of_several_makes_it_due() -> None:
    every = Every.parse("100 steps or 1 minute")
    assert every.due(RunProgress(step=100), RunProgress())
    assert every.due(RunProgress(step=7, seconds=61.0), RunProgress())
    assert not every.due(RunProgress(step=99, seconds=59.0), RunProgress())


def test_never() -> None:
    assert not NEVER
    assert not NEVER.due(RunProgress(step=100, seconds=1e9, epoch=5.0, epoch_end=True), RunProgress())
    assert Every.from_strategy("no", 500) == Every.from_strategy("best", 500) == NEVER


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("40 steps", ("steps", 40)),
        ("10%", ("steps", 0.1)),
        ("1 epoch", ("epoch", None)),
        ("never", ("no", None)),
        ("2 epochs", ("steps", None)),
        ("5 minutes", ("steps", None)),
        ("40 steps or 1 epoch", ("steps", None)),
    ],
)
def test_strategies_there_and_back(text: str, strategy: tuple[str, float | None]) -> None:
    every = Every.parse(text)
    assert every.as_strategy() == strategy
    if strategy[1] is not None or strategy[0] in ("epoch", "no"):
        assert Every.from_strategy(*strategy) == every


@pytest.mark.parametrize(
    ("text", "steps"),
    [("500 steps", 500), ("10%", 10), ("0.5 epochs", 17), ("3 minutes", 100), ("50 steps or 0.5 epochs", 17)],
)
def test_one_number_for_those_who_want_one(text: str, steps: int) -> None:
    assert Every.parse(text).step_interval(100, epochs=3) == steps
