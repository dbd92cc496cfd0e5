"""Phases where steps are uneven, optimizers are a script's own, and what they are changes between two starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import classification_rows
from tests.phases.test_phases import FIRST, SECOND, Dropping, Watch, arguments, same, state_of, trainer, two_phases
from trainwright import Phase, Trainer, TrainingArguments
from trainwright.config.warnings import TrainwrightWarning

#: 7 batches of 8, which makes steps of 3, 3 and 1 of them.
UNEVEN = classification_rows(53, seed=3)


def uneven(folder: Path, phases: list[Phase] | None, watch: Watch, **more: Any) -> Trainer:
    settings = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 3, **more}
    torch.manual_seed(0)
    options: dict[str, Any] = {} if phases is None else {"phases": phases}
    args = arguments(folder, **settings)
    return Trainer(Dropping(), args, train_dataset=UNEVEN, eval_dataset=FIRST, callbacks=[watch], **options)


def test_a_last_step_of_fewer_batches_has_its_own_rate(tmp_path: Path) -> None:
    plain, phased = Watch(), Watch()
    one, other = uneven(tmp_path / "a", None, plain), uneven(tmp_path / "b", [Phase("all", epochs=2)], phased)
    one.train()
    other.train()
    assert plain.rates == phased.rates == pytest.approx([1e-2 * (6 - step) / 6 for step in range(6)])
    assert same(state_of(one), state_of(other))


def test_a_bound_reached_before_a_last_step_of_fewer_batches(tmp_path: Path) -> None:
    phases = [Phase("a", epochs=3, until="eval_loss < 100"), Phase("b", epochs=1)]
    run = uneven(tmp_path, phases, Watch(), eval_strategy="steps", eval_steps=2, num_train_epochs=4)
    run.train()
    assert (run.state.global_step, run.state.epoch) == (6, 2.0)


def test_data_without_a_batch_is_refused_at_once(tmp_path: Path) -> None:
    phases = [Phase("a", epochs=1), Phase("b", epochs=1, train_dataset=FIRST[:3]), Phase("c", epochs=1)]
    run = trainer(tmp_path, phases, dataloader_drop_last=True)
    with pytest.raises(ValueError, match="The data of the phase 'b' gives no batch"):
        run.train()
    assert run.state.global_step == 0


def own(
    folder: Path, phases: list[Phase], schedule: bool = False, rates: tuple[float, ...] = (0.1,), **more: Any
) -> tuple[Trainer, Watch]:
    model, watch = Dropping(), Watch()
    groups = [{"params": [one], "lr": rates[place % len(rates)]} for place, one in enumerate(model.parameters())]
    optimizer = torch.optim.SGD(groups)
    made = torch.optim.lr_scheduler.StepLR(optimizer, 1) if schedule else None
    run = Trainer(
        model,
        TrainingArguments(str(folder), report_to="none", save_strategy="no", write_report=False, **more),
        train_dataset=FIRST,
        callbacks=[watch],
        optimizers=(optimizer, made),
        phases=phases,
    )
    return run, watch


@pytest.mark.parametrize("rate", [5e-5, 0.0])
def test_a_scripts_own_optimizer_has_the_rate_that_a_phase_says(tmp_path: Path, rate: float) -> None:
    kind: dict[str, Any] = {"lr_scheduler_type": "constant"}
    phases = [Phase("its own", epochs=1, **kind), Phase("said", epochs=1, learning_rate=1e-2, **kind)]
    run, watch = own(tmp_path, phases, learning_rate=rate)
    run.train()
    steps = run.state.global_step // 2
    assert watch.rates == pytest.approx([0.1] * steps + [1e-2] * steps)


def test_groups_keep_their_relation(tmp_path: Path) -> None:
    phases = [Phase("said", epochs=1, learning_rate=1e-2, lr_scheduler_type="constant")]
    run, _ = own(tmp_path, phases, rates=(0.1, 0.2))
    run.train()
    assert [group["lr"] for group in run.optimizer.param_groups] == pytest.approx([5e-3, 1e-2, 5e-3, 1e-2])


def test_a_scripts_own_schedule_is_refused(tmp_path: Path) -> None:
    run, _ = own(tmp_path, [Phase("a", epochs=1)], schedule=True)
    with pytest.raises(ValueError, match="Each phase makes its own schedule"):
        run.train()


def test_a_bound_that_nothing_can_reach_is_told(tmp_path: Path) -> None:
    phases = [Phase("a", epochs=2, until="eval_acuracy > 0.9")]
    with pytest.raises(ValueError, match="until= ends a phase by what evaluations show, and there are none"):
        trainer(tmp_path, phases)
    with pytest.warns(TrainwrightWarning, match=r"waits for eval_acuracy .* there are .*eval_loss"):
        trainer(tmp_path, phases, eval_strategy="epoch").train()


def test_an_optimizer_that_cannot_begin_anew_is_refused_after_one_step(tmp_path: Path) -> None:
    run = trainer(tmp_path, [Phase("a", epochs=2), Phase("b", epochs=1, fresh_optimizer=True)], optim="adafactor")
    with pytest.raises(ValueError, match="fresh_optimizer=True: what Adafactor keeps"):
        run.train()
    assert run.state.global_step == 1


def test_later_phases_may_come_go_and_have_other_data(tmp_path: Path) -> None:
    """Nothing that has begun is touched, also in the middle of an epoch."""
    trainer(tmp_path, two_phases(), save_strategy="steps", save_steps=1).train()
    head, everything = two_phases()
    for phases in (
        [head, Phase("all", epochs=1)],
        [head, Phase("all", epochs=2, train_dataset=SECOND[:9])],
        [head, everything, Phase("more", epochs=1, train_dataset=classification_rows(7, seed=4))],
    ):
        run = trainer(tmp_path / "again", phases)
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert run.state.epoch == sum(phase.epochs for phase in phases)
    with pytest.raises(ValueError, match="the dataset's length was 22 and is 9 now"):
        trainer(tmp_path / "again", [head, Phase("all", epochs=2, train_dataset=SECOND[:9])]).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-8")
        )


def test_what_is_over_stays_and_what_changes_is_said(tmp_path: Path) -> None:
    trainer(tmp_path, two_phases(), save_strategy="steps", save_steps=8).train()
    head, everything = two_phases()
    checkpoint = str(tmp_path / "checkpoint-8")
    other = [Phase("head", epochs=2, trainable=["re:second"], learning_rate=0.5), everything]
    with pytest.raises(ValueError, match="'head' is over and had learning_rate=None: set it back"):
        trainer(tmp_path / "again", other).train(resume_from_checkpoint=checkpoint)
    run = trainer(tmp_path / "again", [head, *two_phases(learning_rate=3e-3)[1:]])
    run.train(resume_from_checkpoint=checkpoint)
    events = [json.loads(line) for line in (tmp_path / "again" / "events.jsonl").read_text().splitlines()]
    (said,) = [event["message"] for event in events if event["kind"] == "phases_changed"]
    assert said == "Phase all from here on with learning_rate 0.003 (was 0.001)."
