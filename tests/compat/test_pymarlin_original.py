"""What PyMarlin's own tests, scripts and checkpoints rely on."""

from __future__ import annotations

import logging
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.compat.marlin_modules import Images, build
from trainwright.compat.pymarlin import (
    AbstractTrainer,
    Checkpoint,
    CustomArgParser,
    DataProcessor,
    DDPTrainerBackend,
    DefaultCheckpointer,
    DefaultCheckpointerArguments,
    SingleProcess,
    SingleProcessAmp,
    Stage,
    StatInitArguments,
    Trainer,
    TrainerArguments,
    Writer,
)
from trainwright.compat.pymarlin.core import trainer
from trainwright.compat.pymarlin.core.trainer_backend import TrainerBackendArguments, build_trainer_backend
from trainwright.compat.pymarlin.utils import stats as statistics
from trainwright.compat.pymarlin.utils.checkpointer.checkpoint_utils import BestCheckpointer, BestCheckpointerArguments
from trainwright.compat.pymarlin.utils.differential_privacy import DifferentialPrivacyArguments
from trainwright.compat.pymarlin.utils.distributed import DistributedPreprocessArguments, SequentialDistributedSampler
from trainwright.compat.pymarlin.utils.fabrics import is_azureml_mpirun
from trainwright.compat.pymarlin.utils.logger import getlogger
from trainwright.config.warnings import TrainwrightWarning

# ---- data


class Halves(DataProcessor):
    """Does not call the constructor of its class, as PyMarlin's examples do not."""

    def __init__(self) -> None:
        self.looked = 0

    def process(self, numbers: Any, divisor: int = 2) -> Any:
        return [numbers / divisor]

    def analyze(self) -> None:
        self.looked += 1


def test_a_processor_runs_and_looks_by_itself() -> None:
    processor = Halves()
    assert processor.process_data(8) == [4]
    assert processor.multi_process_data([2, 4, 6], [2]) == [1, 2, 3]
    assert processor.looked == 2
    with pytest.raises(ValueError, match="needs a list"):
        processor.multi_process_data(3)


@pytest.mark.full
def test_a_processor_in_several_processes() -> None:
    assert Halves().multi_process_data([2, 4, 6], 2, process_count=2) == [1, 2, 3]


def test_each_machine_does_its_part_and_tasks_may_return_nothing() -> None:
    shares = []
    for machine in range(2):
        processor = Halves()
        processor.distrib_args = DistributedPreprocessArguments(node_count=2, node_rank=machine)
        shares.append(processor.multi_process_data([2, 4, 6, 8, 10]))
    assert sorted(shares[0] + shares[1]) == [1, 2, 3, 4, 5]
    assert len(shares[0]) in (2, 3)

    class Silent(Halves):
        def process(self, numbers: Any, divisor: int = 2) -> Any:
            return None

    assert Silent().multi_process_data([1, 2]) == [None, None]


@pytest.mark.parametrize("files", [[2], [2, 4]])
def test_a_machine_without_files_has_nothing_to_do(files: list[int]) -> None:
    shares = []
    for machine in range(3):
        processor = Halves()
        processor.distrib_args = DistributedPreprocessArguments(node_count=3, node_rank=machine)
        shares.append(processor.multi_process_data(files, [2]))
        assert processor.looked == 1
    assert shares == [*([file / 2] for file in files), *([] for _ in range(3 - len(files)))]


@pytest.mark.parametrize("result", [0, False, 3, None])
def test_results_that_cannot_be_joined_are_returned(result: Any) -> None:
    class Counting(Halves):
        def process(self, numbers: Any, divisor: int = 2) -> Any:
            return result

    assert Counting().multi_process_data([1, 2]) == [result, result]


def test_datasets_are_joined() -> None:
    class Rows:
        def __getitem__(self, place: int) -> int:
            return [7, 8][place]

    class Loading(Halves):
        def process(self, numbers: Any, divisor: int = 2) -> Any:
            return Rows()

    assert Loading().multi_process_data([1, 2]) == [7, 8, 7, 8]


def test_no_files_are_no_error() -> None:
    assert Halves().multi_process_data([]) == Halves().multi_process_data([], [2]) == []
    with pytest.raises(ValueError, match="equal length"):
        Halves().multi_process_data([1, 2], [1, 2, 3])


# ---- names and small things


def test_names_that_scripts_take_from_core_trainer() -> None:
    settings = trainer.TrainerArguments(
        stats_args=trainer.stats.StatInitArguments(log_steps=3),
        writer_args=trainer.WriterInitArguments(tb_log_dir="x"),
        checkpointer_args=trainer.DefaultCheckpointerArguments(checkpoint=False),
    )
    assert settings.stats_args.log_steps == 3
    assert trainer.DistributedTrainingArguments().world_size == 1
    assert trainer.DifferentialPrivacyArguments().noise_multiplier == 1.0
    assert list(SequentialDistributedSampler(range(6), num_replicas=2, rank=1)) == [1, 3, 5]
    assert not is_azureml_mpirun()


def test_the_fields_of_the_arguments_and_their_defaults() -> None:
    defaults = {field.name: getattr(TrainerArguments(), field.name) for field in fields(TrainerArguments)}
    plain = {name: value for name, value in defaults.items() if not name.endswith("_args")}
    assert plain == {
        **{"epochs": 1, "use_gpu": True, "train_batch_size": 1, "gpu_batch_size_limit": 512, "val_batch_size": 1},
        **{"max_train_steps_per_epoch": None, "max_val_steps_per_epoch": None},
        **{"clip_grads": True, "max_grad_norm": 1.0, "reset_optimizers_schedulers": False},
        # Without "aml", which would only warn.
        **{"writers": ["stdout", "tensorboard"], "disable_tqdm": False, "log_level": "INFO", "backend": "sp"},
        **{"amp_backend_native": False, "amp_backend_apex": False, "amp_level_apex": "O1"},
    }
    assert defaults["distributed_training_args"] is defaults["differential_privacy_args"] is None
    assert defaults["checkpointer_args"].period == defaults["stats_args"].log_steps == 1
    assert defaults["writer_args"].tb_log_dir == "logs"


def test_a_trainer_of_ones_own_must_train_and_validate() -> None:
    class Half(AbstractTrainer):
        def train(self) -> None: ...

    with pytest.raises(TypeError, match=r"abstract method '?validate"):
        Half()  # type: ignore[abstract]


@pytest.mark.parametrize(("most", "steps"), [(None, 4), (3, 3), (9, 4)])
def test_the_steps_of_an_epoch_and_their_limit(most: int | None, steps: int, tmp_path: Path) -> None:
    # 42 samples, 12 a step, 4 at a time.
    run = build(Images(), tmp_path, max_train_steps_per_epoch=most)
    assert run.estimated_global_steps_per_epoch == steps
    assert run.module.calls[0] == ("optimizers", steps, 3)


def test_a_logger_shows_its_messages_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for _ in range(2):
        logger = getlogger("a.script.of.ones.own", "DEBUG")
    try:
        logger.debug("seen")
        assert capsys.readouterr().err.count("a.script.of.ones.own") == 1
    finally:
        logger.handlers.clear()


def test_the_ranks_are_in_the_arguments(tmp_path: Path) -> None:
    run = build(Images(), tmp_path)
    ranks: Any = run.args.distributed_training_args
    assert (ranks.local_rank, ranks.global_rank, ranks.world_size) == (0, 0, 1)
    # The same arguments make another Trainer.
    Trainer(Images(), run.args)


def test_statistics_without_a_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    class Notes(Writer):
        def log_scalar(self, k: str, v: object, step: int) -> None:
            print(k, v, step)

    present = statistics._present.set(None)
    try:
        statistics.global_stats.update("early", 1.5)
        statistics.global_stats.rebuild(StatInitArguments(exclude_list=None), [Notes()])
        statistics.global_stats.log_long_stats(7)
        assert capsys.readouterr().out == "early 1.5 7\n"
        statistics.global_stats.log_model(1000, nn.Linear(1, 1))
        statistics.global_stats.rebuild(None, [])
        assert statistics.global_stats.args.log_steps == 1
    finally:
        statistics._present.reset(present)


def test_a_wrong_word_on_the_command_line_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: {b: true}")
    parser = CustomArgParser()
    with pytest.raises(SystemExit, match=r"--a\.b: 'maybe' is neither"):
        parser.parse(["--config_path", str(tmp_path), "--a.b", "maybe"])


# ---- checkpoints


def original(module: nn.Module, optimizer: Any, epoch: int) -> dict[str, Any]:
    """What PyMarlin hands to ``torch.save``."""
    return {
        "module_interface_state": module.state_dict(),
        "trainer_state": {"last_epoch": epoch, "optimizers": [optimizer.state_dict()], "schedulers": []},
        "trainer_backend_state": {"global_step_completed": 8, "batches_completed": 22},
    }


class Constant(Images):
    """Without a schedule."""

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        return [self.optimizer], []


def trained_once(module: Constant) -> dict[str, Any]:
    module.get_optimizers_schedulers(1, 1)
    module.train_step(1, next(iter(module.get_train_dataloader(torch.utils.data.SequentialSampler, 4))), "cpu")[
        0
    ].backward()
    module.optimizer.step()
    return original(module, module.optimizer, 1)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pt", "tar", "other"])
def test_a_checkpoint_of_pymarlin_goes_on(ending: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = Constant()
    saved = trained_once(before)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    torch.save(saved, folder / f"model_1.{ending}")
    kept: dict[str, Any] = dict.fromkeys(("save_dir", "model_state_save_dir", "load_dir"), str(folder))
    if ending == "other":
        with pytest.warns(TrainwrightWarning, match="called .safetensors"):
            settings = DefaultCheckpointerArguments(**kept, file_ext=ending)
    else:
        settings = DefaultCheckpointerArguments(**kept)
    run = build(Constant(), tmp_path, DefaultCheckpointer(settings), epochs=3)
    assert "was written by PyMarlin (torch.save)" in caplog.text
    for name, value in before.state_dict().items():
        assert torch.equal(run.module.state_dict()[name], value), name
    assert run.optimizers[0].state_dict()["state"][0]["step"] == 1
    run.train()
    assert [call[:3] for call in run.module.calls if call[0] == "begin epoch"] == [("begin epoch", 8, 2)]
    assert run.optimizers[0].state_dict()["state"][0]["step"] == 1 + 4
    assert run.global_steps_finished == 12
    assert (folder / "model_2.safetensors").exists()


def test_the_best_checkpointer_goes_on_from_them_too(tmp_path: Path) -> None:
    def load(**more: Any) -> BestCheckpointer:
        settings = BestCheckpointerArguments(
            checkpoint=False, load_dir=str(tmp_path), metric_name="error", init_metric_val=9.0, **more
        )
        return BestCheckpointer(settings)

    def save(name: str, epoch: int) -> None:
        torch.save({"module_interface_state": {"error": 1.0 + epoch}, "trainer_state": {"last_epoch": epoch}}, name)

    save(str(tmp_path / "model_3.pt"), 3)
    assert (load().load().trainer_state, load().best_metric) == ({"last_epoch": 3}, 9.0)
    assert build(Images(), tmp_path / "run", load_only(load(), drop="module_interface_state")).last_epoch == 3
    save(str(tmp_path / "model_best_checkpoint.pt"), 1)
    save(str(tmp_path / "model_latest_checkpoint.pt"), 4)
    checkpointer = load()
    assert (checkpointer.load().trainer_state, checkpointer.best_metric) == ({"last_epoch": 4}, 2.0)
    assert load(load_best=True).load().trainer_state == {"last_epoch": 1}


def load_only(checkpointer: Any, drop: str) -> Any:
    """The checkpointer, with a part left out of what it loads."""
    real = checkpointer.load

    def load() -> Checkpoint:
        found = real()
        setattr(found, drop, None)
        return found

    checkpointer.load = load
    return checkpointer


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ({}, "it is empty, module_interface_state"),
        ({"trainer_state": None}, "it is empty"),
        ({"trainer_state": [1]}, "trainer_state is a list"),
        ({"trainer_state": {"epoch": 1}}, "trainer_state has no last_epoch"),
        ({"trainer_state": {"last_epoch": "1"}}, "trainer_state has no last_epoch"),
        ({"trainer_state": {"last_epoch": 1, "optimizers": {}}}, "optimizers of trainer_state is a dict"),
        (
            {"trainer_state": {"last_epoch": 1, "optimizers": [{"a": 1}]}},
            r"optimizers\[0\].* has no state, param_groups",
        ),
        ({"trainer_state": {"last_epoch": 1, "schedulers": [3]}}, r"schedulers\[0\] of trainer_state is a int"),
        (
            {"trainer_state": {"last_epoch": 1, "optimizers": [{"state": {}, "param_groups": [{}]}]}},
            "param_groups without params",
        ),
        ({"trainer_backend_state": {"batches_completed": 1}}, "trainer_backend_state has no global_step_completed"),
    ],
)
@pytest.mark.parametrize("kind", [DefaultCheckpointer, BestCheckpointer])
def test_what_is_missing_in_a_file_is_named(contents: Any, words: str, kind: Any, tmp_path: Path) -> None:
    torch.save(contents, tmp_path / "model_7.pt")
    settings = BestCheckpointerArguments(checkpoint=False, load_dir=str(tmp_path))
    with pytest.raises(ValueError, match=rf"model_7\.pt: .*cannot be gone on from: .*{words}.*load_dir=None"):
        build(Images(), tmp_path, kind(settings))


def test_what_a_pickle_would_run_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "was_run",))

    def checkpointer(prefix: str) -> DefaultCheckpointer:
        return DefaultCheckpointer(
            DefaultCheckpointerArguments(checkpoint=False, load_dir=str(tmp_path), file_prefix=prefix)
        )

    torch.save({"module_interface_state": Evil()}, tmp_path / "model_0.pt")
    with pytest.raises(ValueError, match="nothing in it was run"):
        checkpointer("model").load()
    assert not (tmp_path / "was_run").exists()
    torch.save({"net.weight": torch.ones(1)}, tmp_path / "weights_0.pt")
    with pytest.raises(ValueError, match="no checkpoint of PyMarlin"):
        checkpointer("weights").load()
    # By what it is, not by what it is called.
    torch.save({"trainer_state": {"last_epoch": 4}}, tmp_path / "named_0.safetensors")
    assert checkpointer("named").load() == Checkpoint(trainer_state={"last_epoch": 4})


def test_folders_are_made_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DefaultCheckpointer(DefaultCheckpointerArguments(checkpoint=False))
    assert list(tmp_path.iterdir()) == []
    DefaultCheckpointer(DefaultCheckpointerArguments(save_dir="a/b", model_state_save_dir="c"))
    assert (tmp_path / "a/b").is_dir()
    assert (tmp_path / "c").is_dir()


# ---- modules that are not a ModuleInterface


class Bare:
    """Nothing but the five methods, and a model in an attribute."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)
        self.ends: list[int] = []
        self.rows: Any = [torch.tensor([float(n), 1.0]) for n in range(8)]

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        return [torch.optim.SGD(self.net.parameters(), lr=0.01)], []

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> Any:
        return DataLoader(self.rows, batch_size=batch_size, sampler=sampler(self.rows))

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> Any:
        return self.get_train_dataloader(sampler, batch_size)

    def train_step(self, global_step: int, batch: Any, device: Any) -> Any:
        return self.net(batch.to(device)).square().mean()

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        return self.net(batch.to(device))

    def on_end_train(self, global_step: int) -> None:
        self.ends.append(global_step)


def test_an_object_with_the_methods_is_trained(tmp_path: Path) -> None:
    bare = Bare()
    before = bare.net.weight.detach().clone()
    run = build(bare, tmp_path, epochs=2, train_batch_size=4, writers=[])
    run.train()
    assert bare.ends == [4]
    assert not torch.equal(bare.net.weight, before)
    again = build(other := Bare(), tmp_path, epochs=2, train_batch_size=4, writers=[])
    assert again.last_epoch == 1
    assert torch.equal(other.net.weight, bare.net.weight)
    with pytest.raises(ValueError, match=r"lacks get_optimizers_schedulers, .*derive it from ModuleInterface"):
        build(object(), tmp_path)


def test_a_torch_module_with_the_methods_is_trained(tmp_path: Path) -> None:
    class Torch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bare = Bare()
            self.net = self.bare.net
            self.factor = nn.Parameter(torch.ones(1))
            self.modes: list[bool] = []

        def get_optimizers_schedulers(self, steps: int, epochs: int) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.01)], []

        def get_train_dataloader(self, **asked: Any) -> Any:
            return self.bare.get_train_dataloader(**asked)

        get_val_dataloaders = get_train_dataloader

        def train_step(self, **given: Any) -> Any:
            self.modes.append(self.training)
            return self.factor * self.bare.train_step(**given)

        def val_step(self, **given: Any) -> Any:
            self.modes.append(self.training)
            return self.bare.val_step(**given)

    module = Torch()
    run = build(module, tmp_path, epochs=1, train_batch_size=4, val_batch_size=8)
    run.train()
    assert module.modes == [True, True, False]
    assert module.factor.item() < 1
    assert set(run.module.state_dict()) == {"factor", "net.weight", "net.bias"}


def test_mocks_for_module_and_backend(tmp_path: Path) -> None:
    module, backend = mock.MagicMock(), mock.MagicMock()
    module.get_state.return_value = backend.get_state.return_value = {}
    module.get_optimizers_schedulers.return_value = [[], []]
    settings = DefaultCheckpointerArguments(save_dir=str(tmp_path), model_state_save_dir=str(tmp_path))
    args = TrainerArguments(epochs=3, train_batch_size=6, checkpointer_args=settings, writers=[])
    run = Trainer(module, args, trainer_backend=backend)
    assert run.module is module
    run.train()
    assert backend.train_dl.call_count == backend.validate_dl.call_count == 3
    assert module.get_val_dataloaders.call_count == module.on_end_train_epoch.call_count == 3
    assert len(list(tmp_path.glob("model_[0-9].safetensors"))) == 3


# ---- backends called by themselves


def backend_of(kind: Any, model: Any, **more: Any) -> tuple[Any, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    backend = kind()
    backend.init(TrainerBackendArguments(model=model, train_batch_size=4, optimizers=[optimizer], **more))
    return backend, optimizer


@pytest.mark.parametrize("kind", [SingleProcess, SingleProcessAmp])
def test_a_backend_trains_a_loader(kind: Any) -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.tensor([3.0]))
            self.calls: list[Any] = []

        def forward(self, stage: Stage, global_step: int, batch: Any, device: Any) -> Any:
            self.calls.append((stage, global_step))
            return (self.x * batch).mean(), batch

    model, callback = Square(), mock.MagicMock()
    backend, _ = backend_of(kind, model, gradient_accumulation=2, clip_grads=False)
    batches = [torch.full((2,), float(number)) for number in (2, 4, 6)]
    loss, seen = backend.train_dl(batches, callback)
    # 3 - (2 + 4) / 2 - 6: the incomplete step at the end is taken too, with its whole weight.
    assert model.x.item() == -6.0
    assert seen.tolist() == [2, 2, 4, 4, 6, 6]
    assert loss.shape == (3,)
    assert [call.args[0] for call in callback.on_end_train_step.call_args_list] == [1, 2]
    assert backend.get_state() == {"global_step_completed": 2, "batches_completed": 3}
    model.calls.clear()
    backend.args.max_val_steps_per_epoch = 2
    assert len(backend.validate_dl(batches)[0]) == 2
    assert model.calls == [(Stage.VAL, 2)] * 2
    backend.args.max_train_steps_per_epoch = 1
    backend.args.clip_grads, backend.args.max_grad_norm = True, 0.5
    backend.train_dl(batches, callback)
    assert model.x.item() == pytest.approx(-6.5)


@pytest.mark.slow
def test_a_part_of_the_loop_that_is_replaced_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(SingleProcess):
        steps = 0

        def optimize(self, optimizers: Any, schedulers: Any) -> None:
            self.steps += 1
            super().optimize(optimizers, schedulers)

    backend = Twice()
    run = Trainer(Images(), build(Images(), tmp_path, epochs=2).args, backend)
    run.train()
    assert backend.steps == run.global_steps_finished == 8
    assert run.module.calls[-1] == ("end", 8)
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    arguments = build(Images(), tmp_path, epochs=2).args
    with pytest.raises(ValueError, match="cannot share gradients for Twice"):
        Trainer(Images(), arguments, DDPTrainerBackend(Twice()))


# ---- differential privacy


def test_privacy_without_opacus_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(ValueError, match="pip install opacus"):
        build_trainer_backend("sp-dp")
    with pytest.raises(ValueError, match="need backend='sp-dp'"):
        TrainerArguments(differential_privacy_args=DifferentialPrivacyArguments())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_privacy_with_opacus(tmp_path: Path) -> None:
    pytest.importorskip("opacus")

    class Linear(Images):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))

    privacy = DifferentialPrivacyArguments(noise_multiplier=0.0, per_sample_max_grad_norm=1e6, sample_rate=0.1)
    private = {"backend": "sp-dp", "clip_grads": False, "differential_privacy_args": privacy}
    with pytest.raises(ValueError, match="clip_grads=False"):
        build(Linear(), tmp_path, **{**private, "clip_grads": True})
    # Without noise and with nothing clipped it is an ordinary run, whatever the accumulation; 36 samples: whole steps.
    weights = []
    for settings in ({"backend": "sp", "clip_grads": False}, private):
        run = build(Linear(), tmp_path / str(len(weights)), epochs=1, max_train_steps_per_epoch=3, **settings)
        torch.manual_seed(1)
        run.train()
        weights.append(run.module.net[1].weight.detach().clone())
    assert run.trainer_backend.accountant.history == [(0.0, 0.1, 3)]
    assert run.global_steps_finished == 3
    torch.testing.assert_close(weights[1], weights[0])
