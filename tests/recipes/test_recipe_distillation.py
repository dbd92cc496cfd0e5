"""Learning from a teacher: the formula, where the teacher comes from, what it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import Bare, Plain, classification_rows, tiny_gpt2, token_rows
from trainwright import Trainer, TrainingArguments
from trainwright.config.warnings import TrainwrightWarning
from trainwright.recipes.distillation.output import DistillationModifier
from trainwright.recipes.distillation.per_layer import PerLayerDistillationModifier
from trainwright.recipes.distillation.per_output import OutputDistillationModifier

MakeArgs = Callable[..., TrainingArguments]


def by_hand(task: Tensor, student: Tensor, teacher: Tensor, hardness: float, temperature: float) -> Tensor:
    p = F.softmax(teacher / temperature, -1)
    rows = (p * (p.log() - F.log_softmax(student / temperature, -1))).sum(-1)
    return (1 - hardness) * task + hardness * temperature**2 * rows.mean()


@pytest.mark.parametrize("form", ["tensor", "dict", "tuple"])
def test_the_loss_is_the_formula(form: str) -> None:
    class Answers(nn.Module):
        def __init__(self, logits: Tensor) -> None:
            super().__init__()
            self.logits = logits

        def forward(self, x: Tensor) -> Any:
            return {"tensor": self.logits, "dict": {"logits": self.logits}, "tuple": (self.logits,)}[form]

    student, teacher = torch.randn(5, 4), torch.randn(5, 4)
    task = torch.tensor(0.7)
    modifier = DistillationModifier(hardness=0.3, temperature=3.0)
    modifier.set_teacher(Answers(teacher))
    modifier.has_begun = True
    outputs = Answers(student)(torch.zeros(1))
    got = modifier.modify_loss(task, outputs, {"x": torch.zeros(5, 1)})
    torch.testing.assert_close(got, by_hand(task, student, teacher, 0.3, 3.0), rtol=1e-6, atol=1e-6)


def test_several_outputs_are_averaged_and_keys_choose() -> None:
    class Spans(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"start_logits": x, "end_logits": 2 * x, "hidden": 3 * x}

    student = {"start_logits": torch.randn(3, 5), "end_logits": torch.randn(3, 5), "hidden": torch.randn(3, 5)}
    x, zero = torch.randn(3, 5), torch.tensor(0.0)
    for keys, wanted in ((None, ("start_logits", "end_logits")), (["hidden"], ("hidden",))):
        modifier = DistillationModifier(hardness=1.0, temperature=1.0, distill_output_keys=keys)
        modifier.set_teacher(Spans())
        modifier.has_begun = True
        answers = Spans()(x)
        expected = sum(by_hand(zero, student[k], answers[k], 1.0, 1.0) for k in wanted) / len(wanted)
        torch.testing.assert_close(modifier.modify_loss(zero, student, {"x": x}), expected, rtol=1e-5, atol=1e-6)


def test_a_tensor_and_a_name_mean_the_same_output(make_args: MakeArgs) -> None:
    named, bare = Plain(), Plain()
    teachers = (Plain(seed=4), Bare(seed=4))
    for model, teacher in zip((named, bare), teachers, strict=True):
        train(make_args(num_train_epochs=1), model, [DistillationModifier()], teacher)
    assert all(torch.equal(a, b) for a, b in zip(named.parameters(), bare.parameters(), strict=True))


def train(args: TrainingArguments, model: nn.Module, recipe: Any, teacher: Any, **options: Any) -> Trainer:
    trainer = Trainer(model, args, train_dataset=classification_rows(), recipe=recipe, teacher=teacher, **options)
    trainer.train()
    return trainer


def test_a_run_equals_a_loop_written_by_hand(make_args: MakeArgs) -> None:
    """Whatever the cut: accumulation, micro-batches or one batch."""
    teacher = Plain(seed=9)
    rows = classification_rows(16)
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in (0, 8):
        x = torch.stack([row["x"] for row in rows[start : start + 8]])
        y = torch.stack([row["labels"] for row in rows[start : start + 8]])
        student = model(x, y)
        with torch.no_grad():
            answers = teacher(x)["logits"]
        by_hand(student["loss"], student["logits"], answers, 0.5, 2.0).backward()
        optimizer.step()
        optimizer.zero_grad()
    cuts: list[dict[str, Any]] = [
        {"per_device_train_batch_size": 8},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        {"per_device_train_batch_size": 8, "micro_batch": 3},
    ]
    for cut in cuts:
        args = make_args(
            num_train_epochs=1,
            optim="sgd",
            learning_rate=0.1,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            train_sampling_strategy="sequential",
            **cut,
        )
        trained = Plain()
        train(args, trained, [DistillationModifier(end_epoch=1.0)], teacher)
        for (name, wanted), got in zip(model.named_parameters(), trained.parameters(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, msg=name)


def test_padding_and_cuts_do_not_change_the_loss_of_a_language_model(make_args: MakeArgs) -> None:
    weights = []
    for size, accumulation in ((8, 1), (2, 4)):
        model = tiny_gpt2(0).double()
        args = make_args(
            max_steps=3,
            optim="sgd",
            learning_rate=0.1,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            train_sampling_strategy="sequential",
        )
        recipe = [DistillationModifier(hardness=0.7)]
        Trainer(model, args, train_dataset=token_rows(), recipe=recipe, teacher=tiny_gpt2(5).double()).train()
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_self_is_the_model_before_training(make_args: MakeArgs) -> None:
    """The original raises an AttributeError here."""
    seen: list[Tensor] = []

    class Watches(DistillationModifier):
        def with_teacher(self, loss: Any, outputs: Any, inputs: Any, answers: Any) -> Tensor:
            seen.append(answers["logits"].clone())
            return super().with_teacher(loss, outputs, inputs, answers)

    model = Plain()
    before = Plain()
    rows = classification_rows(8)
    args = make_args(num_train_epochs=3, per_device_train_batch_size=8, train_sampling_strategy="sequential")
    Trainer(model, args, train_dataset=rows, recipe=[Watches()], teacher="self").train()
    expected = before(torch.stack([row["x"] for row in rows]))["logits"]
    assert len(seen) == 3
    assert all(torch.equal(logits, expected) for logits in seen)


def test_disable_is_plain_training(make_args: MakeArgs) -> None:
    plain, disabled = Plain(), Plain()
    args = make_args(num_train_epochs=1)
    Trainer(plain, args, train_dataset=classification_rows()).train()
    train(args, disabled, [DistillationModifier()], "disable")
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), disabled.parameters(), strict=True))


def test_no_teacher_is_refused_with_the_ways_out(make_args: MakeArgs) -> None:
    with pytest.raises(ValueError, match=r"needs a teacher: pass teacher= a module.*'self'; 'disable'"):
        Trainer(Plain(), make_args(), train_dataset=classification_rows(), recipe=[DistillationModifier()])


def test_both_names_of_the_teacher(make_args: MakeArgs) -> None:
    recipe = [DistillationModifier()]
    with pytest.raises(ValueError, match="not both"):
        Trainer(Plain(), make_args(), recipe=recipe, teacher="self", distill_teacher="self")
    trainer = Trainer(Plain(), make_args(), recipe=recipe, distill_teacher="disable")
    assert trainer.teacher == "disable"


def test_a_teacher_nobody_learns_from_is_said(make_args: MakeArgs) -> None:
    with pytest.warns(TrainwrightWarning, match="no modifier of the recipe learns from one"):
        Trainer(Plain(), make_args(), train_dataset=classification_rows(), teacher=Plain(seed=3))


def test_a_teacher_from_a_folder(make_args: MakeArgs, tmp_path: Path) -> None:
    teacher = Plain(seed=4)
    Trainer(teacher, make_args(output_dir=str(tmp_path / "t"))).save_model(tmp_path / "teacher")
    from_folder, from_module = Plain(), Plain()
    train(make_args(num_train_epochs=1), from_folder, [DistillationModifier()], str(tmp_path / "teacher"))
    train(make_args(num_train_epochs=1), from_module, [DistillationModifier()], teacher)
    assert all(torch.equal(a, b) for a, b in zip(from_folder.parameters(), from_module.parameters(), strict=True))


def test_a_transformers_teacher_from_a_folder(make_args: MakeArgs, tmp_path: Path) -> None:
    tiny_gpt2(7).save_pretrained(tmp_path / "teacher")
    model = tiny_gpt2(0)
    args = make_args(max_steps=2, per_device_train_batch_size=4)
    recipe = [DistillationModifier(hardness=1.0)]
    trainer = Trainer(model, args, train_dataset=token_rows(), recipe=recipe, teacher=tmp_path / "teacher")
    assert trainer.train().training_loss > 0


@pytest.mark.parametrize(
    ("teacher", "said"),
    [("nowhere", "not a folder with a saved model"), (3, "neither a module"), ("itself", "pass teacher='self'")],
)
def test_a_teacher_that_cannot_be(make_args: MakeArgs, teacher: Any, said: str) -> None:
    model = Plain()
    chosen = model if teacher == "itself" else teacher
    with pytest.raises(ValueError, match=said):
        train(make_args(), model, [DistillationModifier()], chosen)


def test_other_classes_are_refused(make_args: MakeArgs) -> None:
    with pytest.raises(ValueError, match="same classes"):
        train(make_args(max_steps=1), Plain(), [DistillationModifier()], Plain(classes=5))


def test_inputs_by_signature_and_by_prefix(make_args: MakeArgs) -> None:
    """A teacher with inputs of its own gets the columns that carry its prefix; the student never sees them."""
    given: list[Tensor] = []

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(9, 3)

        def forward(self, wide: Tensor) -> Tensor:
            given.append(wide)
            return self.layer(wide)

    rows = [{**row, "distill_teacher:wide": torch.full((9,), float(i))} for i, row in enumerate(classification_rows(8))]
    args = make_args(num_train_epochs=1, per_device_train_batch_size=4, train_sampling_strategy="sequential")
    model = Bare()
    trainer = Trainer(
        model,
        args,
        train_dataset=rows,
        eval_dataset=rows,
        recipe=[DistillationModifier(distill_output_keys=[0])],
        teacher=Wide(),
    )
    trainer.train()
    trainer.evaluate()
    assert [tensor[:, 0].tolist() for tensor in given] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_teacher_is_asked_once_without_gradients_in_the_runs_precision(make_args: MakeArgs) -> None:
    asked: list[tuple[bool, bool]] = []

    class Counted(Plain):
        def logits(self, x: Tensor) -> Tensor:
            asked.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
            return super().logits(x)

    recipe = [
        DistillationModifier(),
        PerLayerDistillationModifier(student_layer_names=["first"]),
        DistillationModifier(hardness=0.1),
    ]
    args = make_args(max_steps=2, per_device_train_batch_size=8, bf16=True)
    train(args, Plain(), recipe, Counted(seed=3))
    assert asked == [(False, True), (False, True)]


def test_layers_follow_the_teachers_with_projections(make_args: MakeArgs, tmp_path: Path) -> None:
    class Wider(Plain):
        def __init__(self) -> None:
            super().__init__(seed=2)
            self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 3)

    teacher, model = Wider(), Plain()
    modifier = PerLayerDistillationModifier(gain=2.0, student_layer_names=["first"], normalize=False)
    args = make_args(max_steps=30, per_device_train_batch_size=16, learning_rate=0.02, max_grad_norm=0)
    distances: list[float] = []

    class Watch(PerLayerDistillationModifier):
        def combined(self, loss: Tensor, features: Any) -> Tensor:
            distances.append(float(F.mse_loss(features[0][1], features[0][2]).detach()))
            return super().combined(loss, features)

    watched = Watch(gain=2.0, student_layer_names=["first"], normalize=False)
    trainer = train(args, model, [watched], teacher)
    assert distances[-1] < 0.5 * distances[0]
    assert len(trainer.optimizer.param_groups) > 1
    assert set(model.state_dict()) == set(Plain().state_dict())
    assert modifier.extra_parameters() == {}


def test_layer_distance_is_the_formula() -> None:
    model, teacher = Plain(), Plain(seed=5)
    modifier = PerLayerDistillationModifier(gain=1.5, project_features=False, student_layer_names=["first", "second"])
    modifier.set_teacher(teacher)
    modifier.prepare_model(model)
    modifier.has_begun = True
    x = torch.randn(4, 6)
    model(x)
    got = modifier.modify_loss(torch.tensor(1.0), None, {"x": x})
    expected = 1.0
    hidden, other = model.first(x), teacher.first(x)
    for own, wanted in ((hidden, other), (model.logits(x), teacher.logits(x))):
        expected = expected + 1.5 * F.mse_loss(own, wanted) / (wanted.square().mean() + 1e-6)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "comparison", ["l1", "l2", "inner_product", "cosine", "kl_divergence", "cross_entropy", "square_head"]
)
def test_outputs_of_layers_with_every_comparison(make_args: MakeArgs, comparison: str) -> None:
    recipe = [OutputDistillationModifier(targets=["second"], comparison=comparison, projection="linear")]
    model = Plain()
    trainer = train(make_args(max_steps=2), model, recipe, Plain(seed=8))
    assert trainer.state.global_step == 2
    assert set(model.state_dict()) == set(Plain().state_dict())


@pytest.mark.slow
def test_resume_is_exact_with_projections_and_self(make_args: MakeArgs, tmp_path: Path) -> None:
    def run(folder: str, stop: int | None, resume: bool = False) -> Plain:
        recipe = [
            DistillationModifier(start_epoch=0.5, end_epoch=2.5),
            PerLayerDistillationModifier(student_layer_names=["first", "second"]),
        ]
        args = make_args(
            output_dir=str(tmp_path / folder),
            num_train_epochs=3,
            per_device_train_batch_size=4,
            save_strategy="steps",
            save_steps=1,
        )
        model = Plain()
        trainer = Trainer(model, args, train_dataset=classification_rows(), recipe=recipe, teacher="self")
        if stop is not None:
            from trainwright import TrainerCallback

            class Stop(TrainerCallback):
                def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                    control.should_training_stop = state.global_step >= stop

            trainer.add_callback(Stop())
        trainer.train(resume_from_checkpoint=str(tmp_path / folder / f"checkpoint-{4}") if resume else None)
        return model

    whole = run("whole", None)
    run("parts", 5)
    resumed = run("parts", None, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_self_of_another_model_is_refused_on_resume(make_args: MakeArgs) -> None:
    args = make_args(num_train_epochs=1, save_strategy="epoch")
    train(args, Plain(), [DistillationModifier()], "self")
    other = Trainer(
        Plain(seed=77), args, train_dataset=classification_rows(), recipe=[DistillationModifier()], teacher="self"
    )
    with pytest.raises(ValueError, match="other weights than the one this run began with"):
        other.train(resume_from_checkpoint=True)


def test_an_update_frequency_that_could_not_act_is_refused() -> None:
    with pytest.raises(ValueError, match="asked in every step"):
        DistillationModifier(update_frequency=0.5)


def test_a_compute_loss_without_outputs_is_refused_before_step_1(make_args: MakeArgs) -> None:
    class Own(Trainer):
        def compute_loss(self, model: nn.Module, inputs: Any) -> Any:  # type: ignore[override]
            return model(**inputs)["loss"]

    trainer = Own(
        Plain(), make_args(), train_dataset=classification_rows(), recipe=[DistillationModifier()], teacher="self"
    )
    with pytest.raises(ValueError, match="must take return_outputs"):
        trainer.train()


def test_a_training_step_of_ones_own_cannot_hide_the_teacher(make_args: MakeArgs) -> None:
    class Own(Trainer):
        def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
            loss = model(**inputs)["loss"]
            loss.backward()
            return loss.detach()

    trainer = Own(
        Plain(), make_args(), train_dataset=classification_rows(), recipe=[DistillationModifier()], teacher="self"
    )
    with pytest.raises(ValueError, match=r"does not call super\(\).training_step"):
        trainer.train()


@pytest.mark.slow
def test_layers_are_seen_in_a_compiled_model(make_args: MakeArgs) -> None:
    # The class was compiled before, without anybody looking at its layers.
    plain = make_args(max_steps=1, torch_compile=True, torch_compile_backend="eager")
    Trainer(Plain(), plain, train_dataset=classification_rows(8)).train()
    results = []
    for compiled in (False, True):
        model = Plain()
        args = (
            make_args(max_steps=3, per_device_train_batch_size=8, torch_compile=compiled, torch_compile_backend="eager")
            if compiled
            else make_args(max_steps=3, per_device_train_batch_size=8)
        )
        recipe = [DistillationModifier(), PerLayerDistillationModifier(student_layer_names=["first"])]
        train(args, model, recipe, Plain(seed=6))
        results.append(list(model.parameters()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
