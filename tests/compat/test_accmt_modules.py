"""AcceleratorModule in its several styles, metrics, callbacks, samplers and collators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler

from tests.compat.accmt_modules import Accuracy, Latest, Shared, hyper, make, network, samples
from trainwright.compat.accmt import (
    AcceleratorModule,
    Callback,
    ExtendedAcceleratorModule,
    Metric,
    MetricBatch,
    MetricParallel,
    Monitor,
    Trainer,
)
from trainwright.compat.accmt.cadence import native_cadence, number_and_unit


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "checkpoint-model/metrics.jsonl").read_text().splitlines()]


# ---- the grammar of checkpoint_every


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("epoch", (1, "epoch")),
        ("EPOCH", (1, "epoch")),
        ("2 epochs", (2, "epoch")),
        ("30ep", (30, "epoch")),
        ("50 steps", (50, "step")),
        ("eval", (1, "eval")),
        ("1eval", (1, "eval")),
        ("3 evaluations", (3, "eval")),
        ("step", (1, "step")),
        ("sts", (1, "step")),
        ("eps", (1, "epoch")),
        (" 2 ep", (2, "epoch")),
    ],
)
def test_when_checkpoints_come(text: str, found: tuple[int, str], tmp_path: Path) -> None:
    assert number_and_unit(text) == found
    assert native_cadence(text) == f"{found[0]} {found[1]}s"
    make(tmp_path, checkpoint_every=text)


@pytest.mark.parametrize("text", ["5 foo", "1.5 epochs", "-1 ep", "", "10", "0 ep", 3])
def test_what_is_no_rhythm_is_refused_with_the_grammar(text: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[number\] unit.*'50 steps'"):
        make(tmp_path, checkpoint_every=text)


# ---- steps


def test_len_repr_call_and_tools() -> None:
    module = Shared()
    assert len(module) == 10
    assert repr(module).startswith("Shared(Linear(")
    assert str(module) == repr(module.model)
    assert torch.equal(module(torch.ones(1, 4)), module.model(torch.ones(1, 4)))
    module.freeze(module.model)
    assert not any(parameter.requires_grad for parameter in module.model.parameters())
    module.unfreeze(module.model)
    assert all(parameter.requires_grad for parameter in module.model.parameters())
    assert module.pad(torch.tensor([1, 2]), 0, max_length=3).tolist() == [1, 2, 0]
    both = module.pad([torch.tensor([1]), torch.tensor([1, 2])], 9, side="left", op="stack")
    assert both.tolist() == [[9, 1], [1, 2]]
    assert module.status_dict == {}
    assert module.state is None
    with pytest.raises(ValueError, match="max_length is 1"):
        module.pad(torch.tensor([1, 2]), 0, max_length=1)


def test_step_excludes_the_other_steps() -> None:
    with pytest.raises(TypeError, match="defines step and training_step"):

        class Both(Shared):
            def training_step(self, batch: Any) -> Any:
                return None


def test_steps_may_take_the_status(tmp_path: Path) -> None:
    seen: list[int] = []

    class WithStatus(AcceleratorModule):
        def __init__(self) -> None:
            self.model: nn.Module = network()

        def training_step(self, batch: Any, status_dict: dict[str, Any]) -> Any:
            seen.append(status_dict["global_step"])
            assert status_dict is self.status_dict
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch: Any, status_dict: dict[str, Any]) -> Any:
            assert self.state.global_step == status_dict["global_step"]
            return F.cross_entropy(self.model(batch[0]), batch[1])

    trainer = make(tmp_path)
    trainer.fit(WithStatus(), samples(), samples(6))
    assert seen == list(range(14))
    assert trainer.status_dict["eval_global_step"] == 4
    assert trainer.state.finished
    assert trainer.state.is_last_epoch
    assert trainer.state.num_checkpoints_made == 2


def test_what_a_step_returns_is_checked(tmp_path: Path) -> None:
    class NoLoss(Shared):
        def step(self, batch: Any) -> Any:
            return 3

    class NoModel(AcceleratorModule):
        def __init__(self) -> None: ...

    with pytest.raises(ValueError, match="must return the loss"):
        make(tmp_path).fit(NoLoss(), samples())
    with pytest.raises(ValueError, match=r"no self\.model"):
        make(tmp_path).fit(NoModel(), samples())
    with pytest.warns(match="'accuracy', and there is no Metric of that name"):
        make(tmp_path, verbose=True).fit(Latest(), samples(), samples(6))
    with pytest.raises(ValueError, match="not a Linear"):
        make(tmp_path).fit(nn.Linear(1, 1), samples())  # type: ignore[arg-type]


def test_log_logs_the_value_itself(tmp_path: Path) -> None:
    class Logging(Shared):
        def step(self, batch: Any) -> Any:
            loss = super().step(batch)
            self.log({"twice": 2.0, "number": torch.tensor(0.5)})
            return loss

    make(tmp_path, log_every=2).fit(Logging(), samples(), samples(6))
    lines = metrics_of(tmp_path)
    assert {line["twice"] for line in lines if "twice" in line} == {2.0}
    assert {line["number"] for line in lines if "number" in line} == {0.5}
    with pytest.raises(ValueError, match="none does"):
        Logging().log({"x": 1.0})


def test_manual_steps(tmp_path: Path) -> None:
    class Manual(ExtendedAcceleratorModule):
        def __init__(self) -> None:
            self.model: nn.Module = network()

        def training_step(self, batch: Any) -> Any:
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            self.backward(loss)
            self.step()
            self.zero_grad()
            return loss

    automatic, manual = Shared(), Manual()
    hps = hyper(scheduler={"type": "LinearWithWarmup"})
    make(tmp_path / "a", hps, shuffle_train=False).fit(automatic, samples())
    make(tmp_path / "b", hps, shuffle_train=False).fit(manual, samples())
    for a, b in zip(automatic.model.parameters(), manual.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        make(tmp_path / "c", grad_accumulation_steps=2).fit(Manual(), samples())


@pytest.mark.slow
def test_further_models(tmp_path: Path) -> None:
    class Two(ExtendedAcceleratorModule):
        def __init__(self) -> None:
            self.model: nn.Module = network()
            self.other = network(1)
            self.other_optimizer = torch.optim.SGD(self.other.parameters(), lr=0.1)
            self.register("other", optimizer="other_optimizer")

        def training_step(self, batch: Any) -> Any:
            x, y = batch
            loss = F.cross_entropy(self.model(x) + self.other(x), y)
            self.backward(loss)
            self.step_optimizer()
            self.other_optimizer.step()
            self.zero_grad()
            self.additional_optimizer_zero_grad(self.other_optimizer)
            return loss

    class Automatic(Shared):
        def __init__(self) -> None:
            super().__init__()
            self.register("model")

    whole, start, end = Two(), Two(), Two()
    torch.manual_seed(0)
    make(tmp_path / "whole").fit(whole, samples())
    torch.manual_seed(0)
    make(tmp_path / "parts", hyper(epochs=1)).fit(start, samples())
    make(tmp_path / "parts", resume=True).fit(end, samples())
    assert torch.equal(end.other.weight, whole.other.weight)
    assert set(torch.load(tmp_path / "whole/model/pytorch_model.bin", weights_only=True)) == {"weight", "bias"}
    with pytest.raises(ValueError, match="ExtendedAcceleratorModule"):
        make(tmp_path / "c").fit(Automatic(), samples())


def test_optimizer_and_schedule_of_the_modules_own(tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    class Own(Shared):
        def get_optimizer(self) -> Any:
            return torch.optim.Adam(self.model.parameters(), lr=0.5)

        def get_scheduler(self, optimizer: Any, steps_per_epoch: int, epochs: int) -> Any:
            asked.append((steps_per_epoch, epochs))
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=steps_per_epoch * epochs)

    module = Own()
    trainer = make(tmp_path, grad_accumulation_steps=2)
    trainer.fit(module, samples())
    assert asked == [(4, 2)]
    assert isinstance(module.optimizer, torch.optim.Adam)
    assert trainer.status_dict["learning_rate"] == pytest.approx(0.5 / 25 / 1e4)


def test_a_teacher_is_at_rest_and_not_saved(tmp_path: Path) -> None:
    class Student(Shared):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = nn.Sequential(network(1), nn.Dropout(0.9))

        def step(self, batch: Any) -> Any:
            assert self.teacher is not None
            assert not self.teacher.training
            assert not any(parameter.requires_grad for parameter in self.teacher.parameters())
            return super().step(batch) + F.mse_loss(self.model(batch[0]), self.teacher(batch[0]))

    module = Student()
    assert module.teacher is not None
    before = [parameter.clone() for parameter in module.teacher.parameters()]
    make(tmp_path).fit(module, samples(), samples(6))
    assert all(torch.equal(a, b) for a, b in zip(before, module.teacher.parameters(), strict=True))
    assert set(torch.load(tmp_path / "model/pytorch_model.bin", weights_only=True)) == {"weight", "bias"}


# ---- metrics


@pytest.mark.parametrize("kind", [Metric, MetricParallel, MetricBatch])
def test_metrics_work_on_the_cpu(kind: type[Metric], tmp_path: Path) -> None:
    class Own(kind):  # type: ignore[misc, valid-type]
        def compute(self, *args: Tensor) -> dict[str, Any]:
            predictions, references = args
            return {"accuracy": (predictions == references).float().mean()}

    trainer = make(tmp_path, hyper(batch_size=[4, 3]), metrics=Own("accuracy"))
    module = Latest()
    trainer.fit(module, samples(), samples(6))
    data = samples(6)
    expected = (module.model(data.tensors[0]).argmax(-1) == data.tensors[1]).float().mean().item()
    assert trainer.status_dict["additional_metrics"]["accuracy"] == pytest.approx(expected)


def test_metrics_are_checked() -> None:
    metric = Accuracy("accuracy", main_metric="f1")
    metric.add_batch(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="'f1' in it"):
        metric.result()
    metric.add_batch(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match="first dimension"):
        metric.add_batch(torch.zeros(2, 4), torch.zeros(2))
    with pytest.raises(ValueError, match="comparator"):
        Accuracy("accuracy", comparator="=")


# ---- callbacks


@pytest.mark.slow
def test_moments_in_their_order(tmp_path: Path) -> None:
    class All(Callback):
        def __init__(self) -> None:
            self.heard: list[str] = []

    names = [name for name in vars(Callback) if name.startswith("on_")]
    for name in names:
        setattr(All, name, lambda self, *given, name=name: self.heard.append(name))
    listener = All()
    hps = hyper(epochs=1, batch_size=13, scheduler={"type": "Constant"})
    trainer = make(tmp_path, hps, callbacks=listener)
    trainer.fit(Shared(), samples(), samples(6))
    step = [
        f"{when}_{what}"
        for what in ("training_step", "backward", "optimizer_step", "scheduler_step", "zero_grad")
        for when in ("before", "after")
    ]
    validation = ["evaluation_start", "before_validation_step", "after_validation_step", "evaluation_end"]
    expected = ["fit_start", "epoch_start", *step, *step, "epoch_end", *validation, "save_checkpoint", "fit_end"]
    assert listener.heard == [f"on_{name}" for name in expected]
    assert listener.trainer is trainer
    assert listener.module is trainer.module
    assert listener.state.global_step == 2

    class Fails(Shared):
        def step(self, batch: Any) -> Any:
            raise self.error

        error: BaseException = RuntimeError()

    for error, moment in (
        (RuntimeError("x"), "on_runtime_error"),
        (KeyboardInterrupt(), "on_keyboard_interrupt"),
        (torch.OutOfMemoryError("CUDA out of memory"), "on_cuda_out_of_memory"),
        (ValueError("x"), "on_exception"),
    ):
        module = Fails()
        module.error = error
        with pytest.raises(type(error)):
            make(tmp_path / "b", callbacks=[listener]).fit(module, samples())
        assert listener.heard[-1] == moment
    hps["hps"]["epochs"] = 2
    make(tmp_path, hps, callback=listener, resume=True).fit(Shared(), samples())
    assert "on_resume" in listener.heard
    with pytest.raises(ValueError, match="no Callback"):
        make(tmp_path, callbacks=[print])


# ---- data


def collate_first(rows: list[Any]) -> Any:
    return [(x, y) for x, y in rows]


def collate_second(rows: Any) -> Any:
    return torch.stack([x for x, _ in rows]) * 0, torch.stack([y for _, y in rows])


@pytest.mark.slow
def test_collators_compose_and_the_modules_own_wins(tmp_path: Path) -> None:
    module = Shared()
    make(tmp_path / "a", collate_fn=[collate_first, collate_second]).fit(module, samples())
    assert all(not batch.any() for batch in module.seen)

    class Own(Shared):
        def collate_fn(self, batch: list[Any]) -> Any:
            x, y = collate_second(batch)
            return x + 7, y

    class OwnInTraining(Own):
        def collate_fn_train(self, batch: list[Any]) -> Any:
            x, y = collate_second(batch)
            return x + 8, y

    for kind, value in ((Own, 7), (OwnInTraining, 8)):
        own = kind()
        make(tmp_path / "b", collate_fn=[collate_first, collate_second]).fit(own, samples())
        assert all((batch == value).all() for batch in own.seen)
    with pytest.raises(ValueError, match="collate_fn='x'"):
        make(tmp_path / "c", collate_fn="x").fit(Shared(), samples())


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (SequentialSampler(range(4)), [0, 1, 2, 3]),
        ([range(10, 20), lambda indices: indices[:3], [2, 0]], [12, 10]),
        ([SequentialSampler], list(range(26))),
        ([range(5), RandomSampler, sorted], [0, 1, 2, 3, 4]),
        ([SubsetRandomSampler([3, 4]), sorted], [3, 4]),
        (lambda indices: indices[::-1], list(range(25, -1, -1))),
    ],
)
def test_samplers_compose(sampler: Any, expected: list[int], tmp_path: Path) -> None:
    module = Shared()
    make(tmp_path, hyper(epochs=1), sampler=sampler).fit(module, samples())
    assert torch.equal(torch.cat(module.seen), samples().tensors[0][expected, 0])


@pytest.mark.slow
def test_monitor_in_every_form(tmp_path: Path) -> None:
    file = tmp_path / "monitor.yaml"
    file.write_text("monitor: {learning_rate: true, cpu_utilization: true}\n")
    for given in (
        Monitor(learning_rate=True, cpu_utilization=True),
        {"learning_rate": True, "cpu_utilization": True},
        file,
    ):
        make(tmp_path, monitor=given).fit(Shared(), samples(), samples(6))
        training = [line for line in metrics_of(tmp_path) if "train_loss" in line]
        validation = [line for line in metrics_of(tmp_path) if "val_loss" in line]
        assert all({"learning_rate", "CPU_PROCESS_0"} <= line.keys() for line in training)
        assert all(not {"learning_rate", "CPU_PROCESS_0"} & line.keys() for line in validation)
        assert len(validation) == 2
    make(tmp_path, monitor={"train_loss": False, "validation_loss": False}).fit(Shared(), samples(), samples(6))
    assert not {"train_loss", "val_loss"} & {name for line in metrics_of(tmp_path) for name in line}
    assert (tmp_path / "model/pytorch_model.bin").is_file()
    with pytest.raises(ValueError, match="did you mean 'learning_rate'"):
        make(tmp_path, monitor={"learning_rat": True})


def test_imports_that_scripts_have() -> None:
    from trainwright.compat import accmt
    from trainwright.compat.accmt.tracker import MLFlow

    names = "TensorBoard WandB CometML Aim MLFlow ClearML DVCLive Monitor Handler Metric Callback HyperParameters"
    assert all(hasattr(accmt, name) for name in names.split())
    assert accmt.MLFlow is MLFlow
    assert accmt.Trainer is Trainer
