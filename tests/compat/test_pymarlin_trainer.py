"""PyMarlin's Trainer: its order of calls, its sizes, what it refuses."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.compat.marlin_modules import Images, Texts, build
from trainwright.compat.pymarlin import (
    AbstractTrainer,
    Checkpoint,
    DDPTrainerBackend,
    DefaultCheckpointerArguments,
    ModuleInterface,
    SingleProcessAmp,
    Stage,
    Trainer,
    TrainerArguments,
    TrainerBackend,
)
from trainwright.compat.pymarlin.core import trainer_backend as backends
from trainwright.compat.pymarlin.utils.differential_privacy import DifferentialPrivacyArguments
from trainwright.compat.pymarlin.utils.distributed import DistributedTrainingArguments, ranks_from_environment
from trainwright.config.warnings import TrainwrightWarning


def test_the_order_of_calls(tmp_path: Path) -> None:
    run = build(Images(), tmp_path, epochs=2)
    run.train()
    calls = run.module.calls
    micro, epochs = 11, []
    for epoch in (0, 1):
        start = 4 * epoch
        one: list[tuple[Any, ...]] = [("begin epoch", start, epoch)]
        for step in range(4):
            for _ in range(min(3, micro - 3 * step)):
                one += [("train_step", start + step + 1), ("backward", start + step)]
            rows = 12 if step < 3 else 6
            one.append(("step", start + step + 1, min(3, micro - 3 * step), rows, rows))
        epochs += [*one, ("val", start + 4, "all", 42), ("val", start + 4, "few", 5), ("end epoch", start + 4)]
    found = [call[:2] if call[0] == "end epoch" else call for call in calls]
    assert found == [("optimizers", 4, 2), *epochs, ("end", 8)]
    assert (run.global_steps_finished, run.total_steps_finished, run.last_epoch) == (8, 22, 1)


def test_each_epoch_is_shuffled_differently_and_whole(tmp_path: Path) -> None:
    run = build(Images(), tmp_path, epochs=2)
    run.train()
    first, second = run.module.seen[:42], run.module.seen[42:]
    assert sorted(first) == sorted(second)
    assert first != second


def test_the_last_incomplete_window_is_applied_with_its_right_weight(tmp_path: Path) -> None:
    """One step over all samples, in unequal pieces, has the gradient of one batch of them."""

    class Line(Texts):
        def __init__(self) -> None:
            super().__init__()
            x = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
            self.points = TensorDataset(x, x.sum(1, keepdim=True))
            self.line = nn.Linear(2, 1)

        def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
            return [torch.optim.SGD(self.line.parameters(), lr=0.1)], []

        def get_train_dataloader(self, sampler: Any, batch_size: int) -> Any:
            return DataLoader(self.points, batch_size, sampler=sampler(self.points))

        def train_step(self, global_step: int, batch: Any, device: Any) -> torch.Tensor:
            return nn.functional.mse_loss(self.line(batch[0]), batch[1])

        def get_val_dataloaders(self, sampler: Any, batch_size: int) -> Any:
            return None

    module = Line()
    expected = nn.Linear(2, 1)
    expected.load_state_dict(module.line.state_dict())
    x, y = module.points.tensors
    nn.functional.mse_loss(expected(x), y).backward()
    run = build(module, tmp_path, epochs=1, train_batch_size=12, clip_grads=False)
    run.train()
    assert run.global_steps_finished == 1
    torch.testing.assert_close(module.line.weight, expected.weight - 0.1 * expected.weight.grad)  # type: ignore[operator]
    assert run.validate() is None


def test_clipping(tmp_path: Path) -> None:
    class Steep(Texts):
        def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=1.0)], []

        def train_step(self, global_step: int, batch: Any, device: Any) -> torch.Tensor:
            return 1000 * super().train_step(global_step, batch, device)

    module = Steep()
    before = [p.detach().clone() for p in module.parameters()]
    build(module, tmp_path, epochs=1, max_train_steps_per_epoch=1, max_grad_norm=0.5).train()
    moved = torch.cat([(p.detach() - old).flatten() for p, old in zip(module.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.5, rel=1e-4)


def test_epochs_and_validations_that_end_early(tmp_path: Path) -> None:
    run = build(Images(), tmp_path, epochs=2, max_train_steps_per_epoch=2, max_val_steps_per_epoch=1)
    assert run.estimated_global_steps_per_epoch == 2
    run.train()
    assert run.global_steps_finished == 4
    assert [call for call in run.module.calls if call[0] == "val"][:2] == [("val", 2, "all", 10), ("val", 2, "few", 5)]
    # The schedule was made for this many steps and ends with the last of them.
    assert run.schedulers[0].last_epoch == 4
    assert run.schedulers[0].total_steps == 4


def test_data_without_a_length(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(Images().data.get_train_dataset())

    class Streaming(Images):
        def get_train_dataloader(self, sampler: Any, batch_size: int) -> Any:
            return DataLoader(Stream(), batch_size)

    with pytest.raises(ValueError, match="max_train_steps_per_epoch must say"):
        build(Streaming(), tmp_path)
    run = build(Streaming(), tmp_path, epochs=2, max_train_steps_per_epoch=2)
    run.train()
    assert (run.global_steps_finished, run.last_epoch) == (4, 1)


def test_validate_alone_returns_every_loader(tmp_path: Path) -> None:
    run = build(Images(), tmp_path)
    outputs = run.validate()
    assert {key: [len(output) for output in values] for key, values in outputs.items()} == {
        "all": [42, 42],
        "few": [5, 5],
    }
    assert [call for call in run.module.calls if call[0] != "optimizers"] == [
        ("val", 0, "all", 42),
        ("val", 0, "few", 5),
    ]
    single = build(Texts(), tmp_path).validate()
    assert [len(output) for output in single] == [38, 38]
    assert torch.equal(single[1], torch.stack([row["labels"] for row in Texts().rows]))


def test_sizes_and_places(tmp_path: Path) -> None:
    run = build(Images(), tmp_path, train_batch_size=6, gpu_batch_size_limit=1000, val_batch_size=8)
    assert (run.train_step_batch_size, run.gradient_accumulation, run.val_step_batch_size) == (6, 1, 8)
    run = build(Images(), tmp_path, train_batch_size=6, gpu_batch_size_limit=3)
    assert (run.train_step_batch_size, run.gradient_accumulation) == (3, 2)
    assert run.batch_sizes.global_batch == run.pergpu_global_batch_size == 6
    assert run.device == torch.device("cpu")
    assert run.is_main_process
    assert not run.is_distributed
    assert run.get_state() == {"last_epoch": -1}
    assert isinstance(run, AbstractTrainer)


def test_reading_the_number_of_steps_draws_nothing(tmp_path: Path) -> None:
    run = build(Images(), tmp_path)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"])
    assert run.estimated_global_steps_per_epoch == 4
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"])
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert np.array_equal(before[2], after[2])


def test_no_training_data(tmp_path: Path) -> None:
    class Nothing(Texts):
        def get_train_dataloader(self, sampler: Any, batch_size: int) -> Any:
            return None

        def get_val_dataloaders(self, sampler: Any, batch_size: int) -> Any:
            return super().get_train_dataloader(sampler, batch_size)

    run = build(Nothing(), tmp_path)
    assert run.estimated_global_steps_per_epoch == 0
    assert len(run.validate()) == 2
    with pytest.raises(ValueError, match="nothing to train on"):
        run.train()


def test_a_module_must_define_five_methods() -> None:
    class Half(ModuleInterface):
        def train_step(self, global_step: int, batch: Any, device: Any) -> Any: ...

    with pytest.raises(
        TypeError, match=r"get_optimizers_schedulers.*get_train_dataloader.*get_val_dataloaders.*val_step"
    ):
        Half()  # type: ignore[abstract]


def test_forward_runs_the_step_of_the_stage() -> None:
    module = Texts()
    batch = module.collate(module.rows[:3])
    assert module(Stage.TRAIN, 1, batch, "cpu").ndim == 0
    assert len(module(Stage.VAL, 1, batch, "cpu")) == 2
    assert module(Stage.TEST, 1, batch, "cpu") is None
    with pytest.raises(AttributeError, match=r"Stage\.TRAIN"):
        module("train", 1, batch, "cpu")  # type: ignore[arg-type]


# ---- backends


@pytest.mark.parametrize("name", ["sp", "sp-amp", "sp-bf16", "ddp", "ddp-amp"])
def test_backends_by_name_train(name: str, tmp_path: Path) -> None:
    run = build(Images(), tmp_path, epochs=1, backend=name)
    run.train()
    assert run.global_steps_finished == 4
    assert backends.native_name(run.trainer_backend) == name
    assert run.trainer_backend.get_state() == {"global_step_completed": 4, "batches_completed": 11}


def test_backends_as_objects(tmp_path: Path) -> None:
    arguments = build(Images(), tmp_path).args
    assert Trainer(Images(), arguments, SingleProcessAmp()).trainer_backend.get_state()["batches_completed"] == 0
    assert backends.native_name(DDPTrainerBackend(SingleProcessAmp())) == "ddp-amp"
    assert backends.native_name(SingleProcessAmp(enable_amp=False)) == "sp"
    arguments.backend = "ddp"
    with pytest.raises(ValueError, match=r"'sp-amp' and args\.backend 'ddp'"):
        Trainer(Images(), arguments, SingleProcessAmp())
    arguments.backend = "sp"
    with pytest.raises(ValueError, match=r"'sp-amp' and args\.backend 'sp'"):
        Trainer(Images(), arguments, SingleProcessAmp())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: backends.build_trainer_backend("spp"), "there are: sp, sp-amp"),
        (lambda: backends.build_trainer_backend("ddp-amp-apex"), "'sp-amp' or 'ddp-amp'"),
        (backends.SingleProcessApexAmp, "torch has its own"),
        (lambda: backends.build_trainer_backend("ddp-dp"), "'sp-dp'"),
        (lambda: TrainerArguments(amp_backend_apex=True), "torch has its own"),
        (lambda: TrainerArguments(differential_privacy_args=DifferentialPrivacyArguments()), "backend='sp-dp'"),
        (lambda: TrainerArguments(gpu_batch_size_limit=0), "gpu_batch_size_limit must be"),
        (lambda: TrainerArguments(epochs=0), "epochs must be"),
        (lambda: TrainerArguments(max_train_steps_per_epoch=0), "None is without a limit"),
        (lambda: TrainerArguments(log_level="LOUD"), "log_level='LOUD'"),
    ],
)
def test_what_is_refused_says_what_to_use(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("more", [{"amp_level_apex": "O2"}, {"amp_backend_native": True}])
def test_what_does_nothing_says_so(more: dict[str, Any]) -> None:
    with pytest.warns(TrainwrightWarning, match="ignored|does nothing"):
        TrainerArguments(**more)


def test_ranks(tmp_path: Path) -> None:
    mpi = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}
    assert ranks_from_environment(mpi) == DistributedTrainingArguments(1, 5, 8)
    with pytest.raises(ValueError, match="start with torchrun"):
        build(Images(), tmp_path, distributed_training_args=DistributedTrainingArguments(world_size=2))


@pytest.mark.slow
def test_what_fits_is_found_by_trying(tmp_path: Path) -> None:
    run = build(Images(), tmp_path, epochs=1, gpu_batch_size_limit="auto")
    assert (run.train_step_batch_size, run.gradient_accumulation) == (12, 1)
    run.train()
    assert run.module.calls[-1] == ("end", 4)
    assert [call for call in run.module.calls if call[0] == "backward"] == [("backward", step) for step in range(4)]


@pytest.mark.slow
def test_what_does_not_fit_is_done_again_in_pieces(tmp_path: Path) -> None:
    class Large(Images):
        def train_step(self, global_step: int, batch: Any, device: Any) -> Any:
            if len(batch[0]) > 5:
                raise torch.OutOfMemoryError("CUDA out of memory (a test)")
            return super().train_step(global_step, batch, device)

    run = build(Large(), tmp_path, epochs=1, gpu_batch_size_limit="auto")
    assert run.train_step_batch_size == 12
    run.train()
    assert run.train_step_batch_size == 4
    # Every step has all its samples once, whatever the pieces: 12 as 3 x 4 or 4 x 3.
    steps = [call for call in run.module.calls if call[0] == "step"]
    assert [(step, rows) for _, step, _, rows, _ in steps] == [(1, 12), (2, 12), (3, 12), (4, 6)]
    assert run.trainer_backend.get_state() == {"global_step_completed": 4, "batches_completed": 4}


class OwnBackend(TrainerBackend):
    """A loop of one's own, as small as it gets."""

    train_sampler = property(lambda self: torch.utils.data.SequentialSampler)
    val_sampler = property(lambda self: torch.utils.data.SequentialSampler)

    def __init__(self) -> None:
        self.steps = 0

    def init(self, args: Any) -> None:
        self.args = args

    def train_dl(self, dataloader: Any, callback: Any) -> Any:
        collector = backends.OutputCollector()
        for batch in dataloader:
            outputs = self.args.model.forward(Stage.TRAIN, self.steps + 1, batch, self.args.device)
            outputs[0].backward()
            for optimizer in self.args.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            self.steps += 1
            collector.collect(outputs)
            callback.on_end_train_step(self.steps, *outputs[1:])
        return collector.all_outputs

    def validate_dl(self, dataloader: Any) -> Any:
        collector = backends.OutputCollector()
        for batch in dataloader:
            with torch.no_grad():
                collector.collect(self.args.model.forward(Stage.VAL, self.steps, batch, self.args.device))
        return collector.all_outputs

    def get_batches_completed(self) -> int:
        return self.steps

    def get_global_steps_completed(self) -> int:
        return self.steps

    def get_state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def update_state(self, state: Any) -> None:
        self.steps = state["steps"] if state else 0


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    arguments = build(Images(), tmp_path, epochs=2).args
    run: Any = Trainer(Images(), arguments, OwnBackend())
    run.train()
    calls = [call for call in run.module.calls if call[0] not in ("train_step", "step")]
    assert [call[:2] for call in calls] == [
        ("optimizers", 4),
        ("begin epoch", 0),
        ("val", 11),
        ("val", 11),
        ("end epoch", 11),
        ("begin epoch", 11),
        ("val", 22),
        ("val", 22),
        ("end epoch", 22),
        ("end", 22),
    ]
    arguments.epochs = 3
    again: Any = Trainer(Images(), arguments, OwnBackend())
    assert (again.last_epoch, again.global_steps_finished) == (1, 22)
    assert torch.equal(again.module.net[0].weight, run.module.net[0].weight)
    saved, loaded = run.optimizers[0].state_dict()["state"], again.optimizers[0].state_dict()["state"]
    assert torch.equal(saved[0]["exp_avg"], loaded[0]["exp_avg"])
    again.train()
    assert again.global_steps_finished == 33
    assert {key: len(values) for key, values in again.validate().items()} == {"all": 2, "few": 2}


# ---- outputs, states


def test_outputs_are_collated() -> None:
    collector = backends.OutputCollector()
    collector.collect((torch.tensor(4.0), torch.ones(2, 3), "a"))
    collector.collect((torch.tensor(5.0), torch.ones(12, 3), "b"))
    loss, rows, words = collector.all_outputs
    assert loss.tolist() == [4.0, 5.0]
    assert list(rows.shape) == [14, 3]
    assert words == ["a", "b"]
    single = backends.OutputCollector()
    single.collect(torch.ones(4, requires_grad=True))
    assert single.all_outputs[0].shape == (4,)
    assert not single.all_outputs[0].requires_grad


@pytest.mark.slow
def test_saving_between_two_steps(tmp_path: Path) -> None:
    module = Images()
    run = build(module, tmp_path, epochs=1)
    steps: list[int] = []

    def save(global_step: int, *outputs: Any) -> None:
        steps.append(global_step)
        if global_step == 2:
            run.save_checkpoint(force=True)

    object.__setattr__(module, "on_end_train_step", save)
    run.train()
    assert steps == [1, 2, 3, 4]
    kept = Path(run.args.checkpointer_args.save_dir)
    assert sorted(path.name for path in kept.iterdir()) == [
        "model_-1.safetensors",
        "model_0.safetensors",
        "model_model_0.safetensors",
    ]
    resumed = build(
        Images(),
        tmp_path,
        epochs=1,
        checkpointer_args=DefaultCheckpointerArguments(
            load_dir=str(kept), load_filename="model_-1.safetensors", checkpoint=False
        ),
    )
    assert resumed.global_steps_finished == 2
    resumed.train()
    assert torch.equal(resumed.module.state_dict()["net.0.weight"], module.state_dict()["net.0.weight"])


def test_state_that_cannot_be_kept_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class Careless(Images):
        def get_state(self) -> dict[str, Any]:
            return {"file": open}

    run = build(Careless(), tmp_path)
    with pytest.raises(ValueError, match=r"Careless\.get_state\(\)\['file'\] is a builtin"):
        run.train()


def test_a_trainer_that_keeps_more(tmp_path: Path) -> None:
    class Noting(Trainer):
        note = "nothing"

        def get_state(self) -> dict[str, Any]:
            return {**super().get_state(), "note": self.note}

        def update_state(self, state: dict[str, Any] | None) -> None:
            super().update_state(state)
            if state:
                self.note = state["note"]

    arguments = build(Images(), tmp_path, epochs=1).args
    first = Noting(Images(), arguments)
    first.note = "remember this"
    first.train()
    assert Noting(Images(), arguments).note == "remember this"
    assert isinstance(first.load_checkpoints(), Checkpoint)
