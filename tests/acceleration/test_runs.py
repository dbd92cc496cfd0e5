"""Accelerations in a training: chosen by rules, proven on its first batch, kept in its checkpoints."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.acceleration.networks import Convolutional, llama
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.config.accelerations import ACCELERATIONS
from trainwright.engines.torch.acceleration.blocks import CompiledBlocks
from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.head import NoLogits
from trainwright.engines.torch.acceleration.logits import Logits
from trainwright.engines.torch.acceleration.technique import Situation, Undo
from trainwright.training import acceleration, first_call

#: Torch traces what it will not call: not ours to fail on.
pytestmark = pytest.mark.filterwarnings("default")


def rows(count: int = 24, length: int = 12) -> list[dict[str, Tensor]]:
    ids = torch.randint(3, 96, (count, length), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": one, "labels": one} for one in ids]


def images(count: int = 24) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(count, 3, 10, 10, generator=generator)
    return [{"pixels": one, "labels": torch.tensor(number % 5)} for number, one in enumerate(pixels)]


def trainer(
    folder: Path, model: Any = None, data: Any = None, *, kind: type[Trainer] = Trainer, **options: Any
) -> Trainer:
    torch.manual_seed(0)
    callbacks, eval_dataset = options.pop("callbacks", None), options.pop("eval_dataset", None)
    settings: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    args = TrainingArguments(str(folder), **{**settings, **options})
    return kind(
        llama() if model is None else model,
        args,
        train_dataset=data or rows(),
        eval_dataset=eval_dataset,
        callbacks=callbacks,
    )


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def told(folder: Path) -> dict[str, Any]:
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return next(event for line in lines if (event := json.loads(line))["kind"] == "acceleration")


class Wrong:
    """Halves what a layer puts out: an acceleration with a mistake in it."""

    name = "logits"
    says = "a layer is halved"
    changes_bits = True
    is_visible = True
    is_proven = True
    is_compiled = False
    pays_on_cpu = False

    def why_not(self, situation: Situation) -> str | None:
        return None

    def why_not_for(self, call: Call) -> str | None:
        return None

    def install(self, situation: Situation) -> Undo:
        layer = situation.network.get_submodule("model.layers.1.mlp.down_proj")
        handle = layer.register_forward_hook(lambda module, args, output: output * 0.5)
        return handle.remove


class Failing(Wrong):
    def install(self, situation: Situation) -> Undo:
        def fail(*_: Any) -> None:
            raise RuntimeError("no kernel for this\nand more")

        return situation.network.get_submodule("model.layers.1").register_forward_hook(fail).remove


def test_the_names_are_those_of_the_arguments() -> None:
    assert tuple(technique.name for technique in acceleration.TECHNIQUES) == ACCELERATIONS


def test_on_a_cpu_auto_changes_no_bit(tmp_path: Path) -> None:
    found = []
    for wanted in ("off", "auto"):
        run = trainer(tmp_path / wanted, acceleration=wanted)
        run.train()
        found.append(weights(run.model))
    assert same(*found)


def test_named_on_a_cpu_it_is_proven_and_trains_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trainwright")
    plain, fast = trainer(tmp_path / "plain", acceleration="off"), trainer(tmp_path / "fast", acceleration=["logits"])
    plain.train()
    fast.train()
    for name, one in weights(plain.model).items():
        torch.testing.assert_close(fast.model.state_dict()[name], one, rtol=1e-4, atol=1e-5)
    assert "the loss is taken without making logits (logits)" in caplog.text
    event = told(tmp_path / "fast")
    assert event["used"] == ["logits"]
    assert event["left_out"]["blocks"] == "acceleration does not name it"
    assert "times the plain one's (2 are allowed)" in event["message"]
    # What it brings is measured with the whole batch, and said.
    assert event["gain"]["accelerated"]["seconds"] > 0
    assert event["gain"]["plain"]["seconds"] > 0
    assert "Forward and backward of that batch took " in event["message"]


def test_a_training_makes_no_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    numbers = Logits.numbers
    monkeypatch.setattr(Logits, "numbers", lambda logits: made.append(1) or numbers(logits))
    trainer(tmp_path, acceleration=["logits"], gradient_accumulation_steps=2).train()
    assert told(tmp_path)["used"] == ["logits"]
    assert not made


@pytest.mark.slow
def test_the_proof_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout masks, BatchNorm's statistics and weights are those of a run without a proof."""

    class Nothing(Wrong):
        name = "blocks"

        def install(self, situation: Situation) -> Undo:
            return lambda: None

    monkeypatch.setattr(acceleration, "TECHNIQUES", (Nothing(),))
    found = []
    for wanted in ("off", ["blocks"]):
        torch.manual_seed(0)
        run = trainer(tmp_path / str(wanted), Convolutional(), images(), acceleration=wanted)
        run.train()
        found.append(weights(run.model))
    assert told(tmp_path / "['blocks']")["used"] == ["blocks"]
    assert same(*found)


@pytest.mark.parametrize(
    ("technique", "says"),
    [(Wrong(), "its gradient of model"), (Failing(), "it failed on the first batch: RuntimeError: no kernel for this")],
)
def test_an_acceleration_with_a_mistake_is_left_out_and_named(
    technique: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = trainer(tmp_path / "plain", acceleration="off")
    plain.train()
    monkeypatch.setattr(acceleration, "TECHNIQUES", (technique,))
    run = trainer(tmp_path / "run", acceleration=["logits"])
    run.train()
    assert same(weights(run.model), weights(plain.model))
    assert "Nothing is accelerated. Left out: logits, because " + says in caplog.text
    assert told(tmp_path / "run")["used"] == []


def test_of_two_the_good_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Wrong()
    wrong.name = "blocks"
    monkeypatch.setattr(acceleration, "TECHNIQUES", (wrong, NoLogits()))
    run = trainer(tmp_path, acceleration="max")
    run.train()
    event = told(tmp_path)
    assert event["used"] == ["logits"]
    assert "off by" in event["left_out"]["blocks"]


class Fits(Wrong):
    """Lets a network through that has no room for a whole batch otherwise."""

    def install(self, situation: Situation) -> Undo:
        network: Any = situation.network
        network.has_room = True
        return lambda: setattr(network, "has_room", False)


class Large(nn.Module):
    has_room = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if len(x) > 2 and not self.has_room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 100.00 GiB")
        return {"loss": nn.functional.cross_entropy(self.layer(x), labels)}


def test_a_plain_way_that_does_not_fit_is_no_reason_to_train_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceleration, "TECHNIQUES", (Fits(),))
    data = [{"x": torch.randn(3), "labels": torch.tensor(number % 2)} for number in range(24)]
    run = trainer(tmp_path, Large(), data, acceleration="max")
    assert run.train().global_step == 4
    event = told(tmp_path)
    assert event["used"] == ["logits"]
    assert event["gain"]["plain"] is None
    assert "in the plain way it does not fit into memory" in event["message"]


class Unsteady(nn.Module):
    """Adds up in another order every other time, as some kernels of GPUs do."""

    times = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        loss = nn.functional.cross_entropy(self.layer(x), labels)
        return {"loss": loss * (1 + next(self.times) % 2 * 2e-7)}


@pytest.mark.parametrize("is_steady", [True, False])
def test_a_run_says_whether_a_pass_gives_the_same_bits_twice(
    is_steady: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceleration, "TECHNIQUES", (Fits(),))
    monkeypatch.setattr(Large, "has_room", True)
    data = [{"x": torch.randn(3), "labels": torch.tensor(number % 2)} for number in range(24)]
    trainer(tmp_path, Large() if is_steady else Unsteady(), data, acceleration="max").train()
    event = told(tmp_path)
    assert event["repeats"] is is_steady
    assert ("full_determinism=True" in event["message"]) is not is_steady


def test_what_is_not_compared_in_time_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_call, "BUDGET", 0.0)
    wrong = Wrong()
    wrong.name = "blocks"
    monkeypatch.setattr(acceleration, "TECHNIQUES", (wrong, NoLogits()))
    trainer(tmp_path, acceleration="max").train()
    event = told(tmp_path)
    assert event["used"] == []
    assert event["left_out"]["logits"] == "comparing took more than 0 s before its turn came"
    assert event["gain"] is None


class OwnLoss(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        assert type(outputs.logits) is Tensor
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class LooksAtGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "who"),
    [({"kind": OwnLoss}, "OwnLoss.compute_loss"), ({"callbacks": [LooksAtGradients()]}, "LooksAtGradients.on_pre")],
)
def test_what_could_be_seen_is_not_used_where_somebody_looks(options: Any, who: str, tmp_path: Path) -> None:
    run = trainer(tmp_path, acceleration="max", **options)
    choose_without_compiling(run)
    run.train()
    event = told(tmp_path)
    assert event["left_out"]["logits"].startswith(who)
    assert event["left_out"]["logits"].endswith("could see it")


def choose_without_compiling(run: Trainer) -> None:
    """As long as it would be compiled otherwise."""
    network: Any = run.model
    for layer in network.model.layers:
        layer.compile(backend="eager")


@pytest.mark.slow
def test_a_resume_goes_on_with_the_same_and_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "TECHNIQUES", (CompiledBlocks(backend="aot_eager"), NoLogits()))
    torch.compiler.reset()
    whole = trainer(tmp_path / "whole", acceleration=["logits", "blocks"], save_strategy="steps", save_steps=2)
    whole.train()
    saved = json.loads((tmp_path / "whole" / "checkpoint-2" / "training_state.json").read_text(encoding="utf-8"))
    assert saved["acceleration"]["used"] == ["blocks", "logits"]
    assert saved["acceleration"]["shapes"]["input_ids"] == {"shape": [4, 12]}
    torch.compiler.reset()
    # By now its rules would choose otherwise.
    again = trainer(tmp_path / "again", acceleration=["logits", "blocks"], save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert same(weights(again.model), weights(whole.model))
    assert told(tmp_path / "again")["used"] == ["blocks", "logits"]
    # A setting that is changed acts, in either direction.
    other = trainer(tmp_path / "other", acceleration=["logits"])
    other.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert told(tmp_path / "other")["used"] == ["logits"]
    off = trainer(tmp_path / "off", acceleration="off")
    off.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert not (tmp_path / "off" / "events.jsonl").exists() or "acceleration" not in (
        tmp_path / "off" / "events.jsonl"
    ).read_text(encoding="utf-8")


def test_on_another_machine_a_resume_says_that_bits_differ(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = trainer(tmp_path / "whole", acceleration=["logits"], save_strategy="steps", save_steps=2)
    whole.train()
    path = tmp_path / "whole" / "checkpoint-2" / "training_state.json"
    changed = json.loads(path.read_text(encoding="utf-8"))
    run = trainer(tmp_path / "again", acceleration=["logits"])
    original = acceleration.machine
    try:
        acceleration.machine = lambda device: {"device": "another", "torch": "0"}  # type: ignore[assignment]
        run.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    finally:
        acceleration.machine = original  # type: ignore[assignment]
    assert changed["acceleration"]["on"]["torch"] == torch.__version__
    assert "results are not the same to the last bit" in caplog.text


def test_where_nothing_is_accelerated_another_machine_is_nothing_to_speak_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer(tmp_path / "whole", save_strategy="steps", save_steps=2).train()
    monkeypatch.setattr(acceleration, "machine", lambda device: {"device": "another", "torch": "0"})
    trainer(tmp_path / "again").train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert "last bit" not in caplog.text


@pytest.mark.parametrize("wanted", ["fast", ["blocks", "speed"], ["auto"]])
def test_an_unknown_word_is_refused(wanted: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"acceleration=.* is not known; choose from"):
        TrainingArguments(str(tmp_path), acceleration=wanted)


@pytest.mark.parametrize("wanted", [1, True, False, 0.5])
def test_what_is_no_word_is_refused(wanted: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"acceleration=.* must be one of \['auto', 'off', 'max'\], or a list of"):
        TrainingArguments(str(tmp_path), acceleration=wanted)


def test_a_command_line_gives_names_with_commas(tmp_path: Path) -> None:
    assert TrainingArguments(str(tmp_path), acceleration="logits, clip").acceleration == ["logits", "clip"]
