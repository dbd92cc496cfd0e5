"""Names of Accelerate's object and of transformers' Trainer that overrides, callbacks and copied methods use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from trainwright import Trainer, TrainerCallback, TrainingArguments

ROWS = [{"x": torch.randn(4), "labels": torch.tensor(i % 2)} for i in range(16)]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def make(tmp_path: Path, callbacks: list[Any] | None = None, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"max_steps": 3, "report_to": "none", "save_strategy": "no", **options}
    args = TrainingArguments(str(tmp_path), **settings)
    return Trainer(Net(), args, train_dataset=ROWS, eval_dataset=ROWS[:4], callbacks=callbacks)


def test_gradients_are_exchanged_in_the_last_pass_of_a_step_only(tmp_path: Path) -> None:
    class Asking(Trainer):
        seen: list[bool]

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen.append(self.accelerator.sync_gradients)
            assert self.accelerator.gradient_state.sync_gradients is self.accelerator.sync_gradients
            return super().compute_loss(model, inputs, *args, **kwargs)

    args = TrainingArguments(str(tmp_path), max_steps=2, report_to="none", gradient_accumulation_steps=2)
    trainer = Asking(Net(), args, train_dataset=ROWS * 4)
    trainer.seen = []
    assert trainer.accelerator.sync_gradients
    trainer.train()
    assert trainer.seen == [False, True] * 2


def test_the_view_answers_what_code_asks_of_accelerate(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    view: Any = trainer.accelerator
    assert (view.num_processes, view.use_distributed, view.distributed_type, view.is_fsdp2) == (1, False, "NO", False)
    assert view.state.deepspeed_plugin is view.state.fsdp_plugin is view.parallelism_config is None
    assert view.dataloader_config.dispatch_batches is None
    view.even_batches = False
    judge = view.prepare_model(Net(), evaluation_mode=True)
    assert not judge.training
    assert view.prepare_data_loader("a loader") == "a loader"
    assert list(view.skip_first_batches([1, 2, 3], 2)) == [3]
    assert view.free_memory(1, 2) == (None, None)
    assert view.get_state_dict(trainer.model).keys() == trainer.model.state_dict().keys()
    assert view.on_main_process(lambda: 3)() == 3
    with view.split_between_processes(["a", "b"]) as mine, view.main_process_first():
        assert mine == ["a", "b"]
    assert view.gather({"a": torch.ones(2)})["a"].tolist() == [1, 1]
    assert view.gather_for_metrics(["text"]) == ["text"]
    view.save({"w": torch.ones(1)}, tmp_path / "w.safetensors")
    view.save_model(trainer.model, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").is_file()
    view.log({"mine": 2.0})
    assert trainer.state.log_history[-1]["mine"] == 2.0
    weight = trainer.model.get_parameter("layer.weight")
    weight.grad = torch.full_like(weight, 5.0)
    view.clip_grad_value_([weight], 1.0)
    assert weight.grad.max() == 1.0


@pytest.mark.parametrize(
    ("name", "way"),
    [("save_state", "save_strategy"), ("load_state", "resume"), ("register_for_checkpointing", "get_state")],
)
def test_what_the_trainer_does_itself_is_named_with_the_way(name: str, way: str, tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=way):
        getattr(make(tmp_path).accelerator, name)


def test_parts_of_a_list_go_to_processes_in_order() -> None:
    from trainwright.trainer.accelerator_view import _part_of

    assert [_part_of([1, 2, 3, 4, 5], rank, 2, False) for rank in (0, 1)] == [[1, 2, 3], [4, 5]]
    assert [_part_of([1, 2, 3], rank, 2, True) for rank in (0, 1)] == [[1, 2], [3, 3]]
    assert _part_of({"a": torch.arange(4)}, 1, 2, False)["a"].tolist() == [2, 3]


def test_attributes_of_transformers_trainer_are_there(tmp_path: Path) -> None:
    trainer = make(tmp_path, logging_steps=2, skip_memory_metrics=False)
    assert (trainer.deepspeed, trainer.neftune_noise_alpha, trainer._created_lr_scheduler) == (None, None, False)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert trainer._globalstep_last_logged == 2
    assert trainer._created_lr_scheduler
    assert trainer._total_loss_scalar == pytest.approx(trainer._setup.engine.meter.overall() * 3)
    assert losses
    metrics: dict[str, float] = {}
    trainer._memory_tracker.start()
    trainer._memory_tracker.stop_and_update_metrics(metrics)
    assert any("mem" in name for name in metrics)


def test_loaders_say_how_many_samples_all_processes_take(tmp_path: Path) -> None:
    trainer = make(tmp_path, per_device_train_batch_size=4, per_device_eval_batch_size=2)
    assert trainer.get_train_dataloader().total_batch_size == 4
    assert trainer.get_eval_dataloader().total_batch_size == 2


def test_evaluation_loaders_with_workers_that_stay_are_kept(tmp_path: Path) -> None:
    trainer = make(tmp_path, dataloader_num_workers=1, dataloader_persistent_workers=True)
    first = trainer.get_eval_dataloader()
    assert trainer.get_eval_dataloader() is first
    assert trainer._eval_dataloaders["eval"] is first
    assert trainer.get_eval_dataloader(ROWS[:2]) is not first
    trainer.eval_dataset = ROWS[4:8]
    assert trainer.get_eval_dataloader() is not first
    plain = make(tmp_path)
    assert plain.get_eval_dataloader() is not plain.get_eval_dataloader()


def test_the_greedy_schedule_is_transformers_too_and_steps_without_a_metric(tmp_path: Path) -> None:
    from transformers.optimization import GreedyLR

    trainer = make(tmp_path, lr_scheduler_type="greedy", eval_strategy="steps", eval_steps=1, learning_rate=0.01)
    trainer.create_optimizer_and_scheduler(3)
    schedule: Any = trainer.lr_scheduler
    assert isinstance(schedule, GreedyLR)
    before, stepping = schedule.state_dict(), getattr(schedule, "step")  # noqa: B009
    stepping()
    assert schedule.state_dict() == before
    trainer.train()
    assert type(trainer.lr_scheduler).__name__ == "GreedyLR"


def test_training_args_bin_is_written_in_transformers_format_without_the_token(tmp_path: Path) -> None:
    trainer = make(tmp_path, checkpoint_format="hf", hub_token="hf_secret")
    trainer.save_model(str(tmp_path / "saved"))
    written = tmp_path / "saved" / "training_args.bin"
    assert b"hf_secret" not in written.read_bytes()
    args = torch.load(written, weights_only=False)
    assert (args.max_steps, args.hub_token) == (3, None)
    make(tmp_path).save_model(str(tmp_path / "native"))
    assert not (tmp_path / "native" / "training_args.bin").exists()


def test_json_text_in_fields_that_a_subclass_names(tmp_path: Path) -> None:
    class Config(TrainingArguments):
        _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "run_name"]  # noqa: RUF012

    assert Config(str(tmp_path), run_name='{"a": "1"}').run_name == {"a": 1}
    assert TrainingArguments.default_optim == transformers.TrainingArguments.default_optim.replace("_fused", "")
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    args._n_gpu = 1
    assert (args._n_gpu, str(args._setup_devices), args.distributed_state.distributed_type) == (0, "cpu", "NO")
    assert args.deepspeed_plugin is args.fsdp_plugin_args is None


def test_a_callback_sees_the_loader_of_the_evaluation(tmp_path: Path) -> None:
    class Looks(TrainerCallback):
        sizes: list[int] = []  # noqa: RUF012

        def on_evaluate(self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **kwargs: Any) -> None:
            self.sizes.append(eval_dataloader.total_batch_size)

    looks = Looks()
    make(tmp_path, [looks], eval_strategy="steps", eval_steps=3).train()
    assert looks.sizes == [8]
