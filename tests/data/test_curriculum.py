"""Stages of a training over several datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.models import classification_rows
from tests.modules import Classifier, StopAt, equal
from trainwright import Trainer, TrainingArguments
from trainwright.data.curriculum import CurriculumOrder, RangeCurriculum, RatioCurriculum, Stage, StepsCurriculum


def test_shares_of_a_training() -> None:
    ratios = RatioCurriculum()
    for share in (1 / 3, 1 / 3, 1 / 3):
        ratios.add([0], ratio=share)
    assert [stage.steps for stage in ratios.stages(100)] == [33, 34, 33]
    rest = RatioCurriculum()
    rest.add([0], ratio=0.25)
    rest.add([0], ratio=-1)
    assert [stage.steps for stage in rest.stages(10)] == [2, 8]
    ranges = RangeCurriculum()
    ranges.add([0], range(0, 3))
    ranges.add([0], range(3, 10), {"shuffle": False})
    assert [(stage.steps, stage.shuffle) for stage in ranges.stages(10)] == [(3, True), (7, False)]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda c: c.add([0], steps=0), "must be positive"),
        (lambda c: c.add([], steps=1), "empty dataset"),
        (lambda c: c.add(iter([0]), steps=1), "with a length"),
        (lambda c: c.add([0], steps=1, dataloader_kwargs={"batch_size": 3}), "only 'shuffle'"),
        (lambda c: (c.add([0], steps=5), c.stages(10)), "take 5 steps"),
        (lambda c: (c.add([0], steps=-1), c.add([0], steps=5), c.stages(10)), "for the last stage"),
        (lambda c: (c.add([0], steps=10), c.add([0], steps=-1), c.stages(10)), "leave no step"),
        (lambda c: (c.add([0], steps=10), c.stages(-1)), "needs max_steps"),
        (lambda c: c.stages(10), "is empty"),
    ],
)
def test_stages_that_do_not_fit_are_refused(build: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(StepsCurriculum())


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4), st.integers(1, 4))
def test_every_stage_has_its_samples_and_no_others(stages: list[tuple[int, int]], per_step: int) -> None:
    made = [Stage(list(range(size)), steps) for size, steps in stages]
    order = CurriculumOrder(made, per_step, seed=3).indices()
    begin = first = 0
    for size, steps in stages:
        part = order[begin : begin + steps * per_step]
        assert len(part) == steps * per_step
        assert set(part) <= set(range(first, first + size))
        # Nothing comes again before everything has come.
        counts = [part.count(index) for index in range(first, first + size)]
        assert max(counts) - min(counts) <= 1
        begin, first = begin + steps * per_step, first + size
    assert begin == len(order)


@pytest.mark.slow
def test_a_native_training_goes_through_it_and_resumes(tmp_path: Path) -> None:
    def run(place: str, *callbacks: Any, resume: bool = False) -> Classifier:
        stages = StepsCurriculum()
        stages.add(classification_rows(7, seed=1), steps=3)
        stages.add(classification_rows(9, seed=2), steps=-1)
        args = TrainingArguments(
            output_dir=str(tmp_path / place),
            use_cpu=True,
            disable_tqdm=True,
            max_steps=8,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            checkpoint_every="1 steps",
        )
        torch.manual_seed(0)
        module = Classifier()
        Trainer(module, args, train_dataset=stages, callbacks=list(callbacks)).train(resume_from_checkpoint=resume)
        return module

    whole = run("whole")
    run("parts", StopAt(5))
    assert equal(run("parts", resume=True), whole)
