"""Each argument of ACCMT's Trainer: its default is the document's, and it changes something that can be seen."""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.compat.accmt_modules import Shared, checkpoints, hyper, samples
from trainwright.compat.accmt import MLFlow, TensorBoard, Trainer

#: As the document has them; an argument without a default must be given.
DOCUMENT: dict[str, Any] = {
    "hps_config": inspect.Parameter.empty,
    "model_path": inspect.Parameter.empty,
    "track_name": None,
    "checkpoint": None,
    "resume": False,
    "model_saving": "best_valid_loss",
    "evaluate_every_n_steps": None,
    "checkpoint_every": "epoch",
    "logging_dir": "logs",
    "log_with": None,
    "log_every": 1,
    "grad_accumulation_steps": None,
    "clip_grad": None,
    "set_to_none": True,
    "shuffle_train": True,
    "shuffle_validation": False,
    "sampler": None,
    "model_saving_below": None,
    "model_saving_aboce": None,
    "collate_fn": None,
    "max_shard_size": "10GB",
    "safe_serialization": False,
    "compile": False,
    "train_loss_metric_name": "train_loss",
    "val_loss_metric_name": "val_loss",
    "dataloader_pin_memory": True,
    "dataloader_num_workers": 0,
    "report_loss_after_eval": True,
    "handlers": None,
    "eval_when_finish": True,
    "eval_when_start": False,
    "verbose": True,
    "monitor": None,
}


class Kept:
    """An own tracker."""

    def __init__(self) -> None:
        self.run: Any = None
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.status: str | None = None

    def start(self, run: Any) -> str | None:
        self.run = run
        return None

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, dict(values)))

    def finish(self, status: str) -> None:
        self.status = status


class Watched(Shared):
    """Notes what its arguments make of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.validation: list[float] = []
        self.zeroed = False
        self.teacher: nn.Module | None = nn.Linear(4, 2)
        self.compiled: tuple[bool, bool] = (False, False)
        self.norms: list[float] = []

    def step(self, batch: Any) -> Any:
        assert self.teacher is not None
        self.compiled = tuple(part._compiled_call_impl is not None for part in (self.model, self.teacher))  # type: ignore[assignment]
        if torch.is_grad_enabled():
            self.zeroed = self.zeroed or any(parameter.grad is not None for parameter in self.model.parameters())
        else:
            self.validation += batch[0][:, 0].tolist()
        return super().step(batch)


class Seen:
    """One run, and what can be seen of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.module, self.tracker = Watched(), Kept()
        given: dict[str, Any] = {"model_path": str(folder / "model"), "log_with": self.tracker, "verbose": False}
        torch.manual_seed(0)
        given = {"hps_config": hyper(), **given, **options}
        self.trainer = Trainer(**given)
        self.steps = self.trainer.fit(self.module, samples(), samples(6, seed=1)).global_step

    @property
    def names(self) -> set[str]:
        return {str(name) for _, values in self.tracker.logged for name in values}

    def logged(self, name: str) -> list[int]:
        return [step for step, values in self.tracker.logged if name in values]

    @property
    def files(self) -> set[str]:
        return {path.name for path in (self.folder / "model").glob("*")}

    @property
    def order(self) -> list[float]:
        return torch.cat(self.module.seen).tolist()


#: Argument, a value, and what is then to be seen (and is not with the default).
CHANGES: list[tuple[str, Any, Callable[[Seen], bool]]] = [
    ("hps_config", hyper(epochs=1), lambda seen: seen.steps == 7),
    ("track_name", "mine", lambda seen: seen.tracker.run.project == "mine"),
    ("model_saving", None, lambda seen: not seen.files),
    ("evaluate_every_n_steps", 4, lambda seen: seen.logged("val_loss") == [4, 8, 12, 14]),
    ("checkpoint_every", None, lambda seen: not checkpoints(seen.folder)),
    ("log_every", 7, lambda seen: seen.logged("train_loss") == [7, 14]),
    ("log_every", -1, lambda seen: seen.logged("train_loss") == [7, 14]),
    ("grad_accumulation_steps", 7, lambda seen: seen.steps == 2),
    ("clip_grad", 1, lambda seen: bool(seen.trainer._native and seen.trainer._native.args.max_grad_norm == 1.0)),
    ("set_to_none", False, lambda seen: seen.module.zeroed),
    ("shuffle_train", False, lambda seen: seen.order[:26] == samples().tensors[0][:, 0].tolist()),
    (
        "shuffle_validation",
        True,
        lambda seen: seen.module.validation[:6] != samples(6, seed=1).tensors[0][:, 0].tolist(),
    ),
    ("sampler", range(8), lambda seen: seen.steps == 4),
    ("model_saving_below", 0.0, lambda seen: not seen.files),
    ("model_saving_aboce", 99.0, lambda seen: not seen.files),
    ("model_saving_above", 99.0, lambda seen: not seen.files),
    ("max_shard_size", "9B", lambda seen: "pytorch_model.bin.index.json" in seen.files),
    ("safe_serialization", True, lambda seen: "model.safetensors" in seen.files),
    ("compile", True, lambda seen: seen.module.compiled == (True, True)),
    ("train_loss_metric_name", "tl", lambda seen: "tl" in seen.names and "train_loss" not in seen.names),
    ("val_loss_metric_name", "vl", lambda seen: "vl" in seen.names and "val_loss" not in seen.names),
    (
        "dataloader_pin_memory",
        False,
        lambda seen: bool(seen.trainer._native and not seen.trainer._native.args.dataloader_pin_memory),
    ),
    (
        "dataloader_num_workers",
        1,
        lambda seen: bool(seen.trainer._native and seen.trainer._native.args.dataloader_num_workers == 1),
    ),
    ("report_loss_after_eval", False, lambda seen: seen.logged("val_loss") == [7, 7, 14, 14]),
    ("eval_when_start", True, lambda seen: seen.logged("val_loss") == [0, 7, 14]),
    ("monitor", {"learning_rate": True}, lambda seen: "learning_rate" in seen.names),
]


def test_defaults_are_the_documents() -> None:
    parameters = inspect.signature(Trainer.__init__).parameters
    found = {name: parameter.default for name, parameter in parameters.items() if name in DOCUMENT}
    assert found == DOCUMENT
    # In its order too: scripts pass some by position. What comes after it is the right spelling of one of them.
    assert list(parameters) == ["self", *DOCUMENT, "model_saving_above", "kwargs"]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    torch.set_num_threads(1)
    return Seen(tmp_path_factory.mktemp("usual"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value", "shows"), CHANGES, ids=[f"{name}={value}" for name, value, _ in CHANGES])
def test_every_argument_acts(name: str, value: Any, shows: Callable[[Seen], bool], usual: Seen, tmp_path: Path) -> None:
    options: dict[str, Any] = {name: value}
    if name == "compile":
        options["compile_kwargs"] = {"backend": "eager"}
    assert not shows(usual)
    assert shows(Seen(tmp_path, **options))


def test_what_stands_elsewhere() -> None:
    """The arguments that other tests of this file and its neighbours are about."""
    elsewhere = {"model_path", "checkpoint", "resume", "logging_dir", "log_with", "collate_fn", "handlers", "verbose"}
    assert {name for name, _, _ in CHANGES} | elsewhere | {"eval_when_finish"} == {*DOCUMENT, "model_saving_above"}


def test_clipping_is_off_unless_asked_for(usual: Seen, tmp_path: Path) -> None:
    clipped = Seen(tmp_path, clip_grad=1e-3)
    before, after = Shared().model.weight, clipped.module.model.weight
    assert isinstance(before, torch.Tensor)
    assert isinstance(after, torch.Tensor)
    assert (after - before).norm() <= 14 * 0.1 * 1e-3 + 1e-6
    assert (usual.module.model.weight - before).norm() > 0.01  # type: ignore[operator]


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(hyper(), "models/mine")
    assert trainer.model_path == Path("models/mine")
    assert trainer.checkpoint_path == Path("models/checkpoint-mine")
    own = Trainer(hyper(), "models/mine", checkpoint="elsewhere/place", verbose=False)
    own.fit(Shared(), samples())
    assert (tmp_path / "elsewhere/place/checkpoint-14").is_dir()
    inside = Trainer(hyper(), "models/mine", checkpoint="models/mine/checkpoint", verbose=False)
    with pytest.raises(ValueError, match="beside each other"):
        inside.fit(Shared(), samples())


@pytest.mark.slow
def test_eval_when_finish_acts_with_evaluations_by_steps_and_never_repeats_one(tmp_path: Path) -> None:
    found = {}
    for every in (None, 4, 7):
        for wanted in (True, False):
            seen = Seen(tmp_path / f"{every}{wanted}", evaluate_every_n_steps=every, eval_when_finish=wanted)
            found[every, wanted] = seen.logged("val_loss")
    assert found == {
        (None, True): [7, 14],
        (None, False): [7, 14],
        (4, True): [4, 8, 12, 14],
        (4, False): [4, 8, 12],
        (7, True): [7, 14],
        (7, False): [7, 14],
    }


def test_verbose_silences_all_but_errors(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Warns(Shared):
        def step(self, batch: Any) -> Any:
            warnings.warn("from the backend", UserWarning, stacklevel=1)
            logging.getLogger("trainwright").warning("from us")
            return super().step(batch)

    # Where nobody has set logging up, notes go to the error stream.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    level = logging.getLogger("trainwright").level
    Trainer(hyper(), str(tmp_path / "a"), verbose=False).fit(Warns(), samples(), samples(6))
    out, errors = capfd.readouterr()
    assert (out, errors) == ("", "")
    assert logging.getLogger("trainwright").level == level
    with pytest.warns(UserWarning, match="from the backend"):
        Trainer(hyper(), str(tmp_path / "b")).fit(Warns(), samples(), samples(6))
    assert "loss" in "".join(capfd.readouterr())
    with pytest.raises(ValueError, match="takes no 'lrr'"):
        Trainer(hyper(optim={"type": "SGD", "lrr": 1}), str(tmp_path / "c"), verbose=False)


# ---- trackers


def events_of(folder: Path) -> set[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: Any = EventAccumulator(str(folder))
    found.Reload()
    return set(found.Tags()["scalars"])


@pytest.mark.slow
@pytest.mark.parametrize("log_with", [TensorBoard, "TensorBoard", ["tensorboard"]])
def test_tensorboard_under_the_models_name(log_with: Any, tmp_path: Path) -> None:
    Seen(tmp_path, log_with=log_with, logging_dir=str(tmp_path / "logs"))
    assert {"train_loss", "val_loss"} <= events_of(tmp_path / "logs/model")


def test_several_trackers_and_their_options(tmp_path: Path) -> None:
    own = Kept()
    seen = Seen(
        tmp_path, log_with=[TensorBoard, own], logging_dir=str(tmp_path / "logs"), run_name="first", tags=["a", "b"]
    )
    assert own.run.name == "first"
    assert own.run.tags == ("a", "b")
    assert own.run.project == "model"
    assert own.run.config["learning_rate"] == 0.1
    assert own.status == "done"
    assert own.logged
    assert seen.steps == 14


def test_options_that_belong_to_nobody_are_refused(tmp_path: Path) -> None:
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"log_evry": 2}, "did you mean 'log_every'"),
        ({"log_with": MLFlow, "experiment_nam": 2}, "belongs to none"),
        ({"logging_dir": "localhost:5075", "log_with": TensorBoard}, "mlflow"),
        ({"batch_sampler": 1}, "use sampler"),
    ]
    for options, said in mistakes:
        with pytest.raises(ValueError, match=said):
            Trainer(hyper(), str(tmp_path / "m"), **options).fit(Shared(), samples())
    with pytest.warns(match="safe_steps change nothing"):
        Trainer(hyper(), str(tmp_path / "m"), safe_steps=True)


@pytest.mark.parametrize("address", ["http://localhost:1", "localhost:1"])
def test_logging_dir_may_be_a_server(address: str, tmp_path: Path) -> None:
    trainer = Trainer(hyper(), str(tmp_path / "m"), log_with=MLFlow, logging_dir=address)
    assert trainer._tracking["logging_dir"] == address


def test_a_tracker_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import json, pathlib\n"
        "class Own:\n"
        "    def __init__(self, *, place='x'): self.file = pathlib.Path(place)\n"
        "    def start(self, run): return None\n"
        "    def log(self, values, step): self.file.open('a').write(json.dumps([step, values]) + '\\n')\n"
        "    def finish(self, status): pass\n"
    )
    Seen(tmp_path, log_with=f"{file}:Own", place=str(tmp_path / "lines"))
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert {"train_loss", "val_loss"} <= {name for _, values in lines for name in values}
