"""Regularisers in a training: resumed, together, by name, refused where they could not act."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import Bare, Plain, classification_rows
from tests.regularisers.test_formulas import TOKEN_ROWS, Tokens
from trainwright import (
    FGM,
    SAM,
    CutMix,
    Ensemble,
    GradientNoise,
    Mixup,
    RDrop,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.core.modifier import Modifier
from trainwright.experiment.building import build
from trainwright.training.losses import refuse_pieces

MakeArguments = Callable[..., TrainingArguments]


class Dropping(Bare):
    """Draws random numbers, so that a resume has to find them too; takes numbers and small images."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return F.dropout(super().forward(x.flatten(1)), 0.3, self.training)


class DroppingTokens(Tokens):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.3, self.training)


class StopAt(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= 3


ROWS = classification_rows(16)
IMAGE_ROWS = [{**row, "x": row["x"].reshape(1, 2, 3)} for row in ROWS]
CASES: dict[str, tuple[Callable[[], Any], Callable[[], torch.nn.Module], list[Any]]] = {
    "mixup": (Mixup, Dropping, ROWS),
    "cutmix": (CutMix, Dropping, IMAGE_ROWS),
    "gradient noise": (GradientNoise, Dropping, ROWS),
    "r-drop": (RDrop, Dropping, ROWS),
    "fgm": (FGM, DroppingTokens, TOKEN_ROWS),
    "sam": (SAM, DroppingTokens, TOKEN_ROWS),
}


@pytest.mark.parametrize("name", CASES)
def test_a_resume_goes_on_with_the_same_bits(tmp_path: Path, name: str) -> None:
    make, network, rows = CASES[name]

    def trainer(folder: Path, with_it: bool = True, **more: Any) -> Trainer:
        args = TrainingArguments(
            str(folder),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=6,
            learning_rate=1e-2,
            disable_tqdm=True,
            report_to="none",
            **more,
        )
        return Trainer(network(), args, train_dataset=rows, callbacks=[make()] if with_it else None)

    whole, plain = trainer(tmp_path / "whole", save_strategy="no"), trainer(tmp_path / "p", False, save_strategy="no")
    whole.train()
    plain.train()
    first = trainer(tmp_path / "cut", save_steps=3)
    first.add_callback(StopAt())
    first.train()
    assert first.state.global_step == 3
    second = trainer(tmp_path / "cut", save_steps=3)
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 6
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    # And it does something.
    pairs = zip(whole.model.parameters(), plain.model.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in pairs)


def short(make_args: MakeArguments, callback: Any, model: Any = None, rows: Any = ROWS, **more: Any) -> Trainer:
    options: dict[str, Any] = {"per_device_train_batch_size": 4, "max_steps": 1, **more}
    loss = options.pop("compute_loss_func", None)
    model = model or Bare()
    return Trainer(model, make_args(**options), train_dataset=rows, callbacks=[callback], compute_loss_func=loss)


@pytest.mark.parametrize("make", [Mixup, SAM])
def test_what_depends_on_the_cut_says_so_once(
    make_args: MakeArguments, caplog: pytest.LogCaptureFixture, make: Callable[[], Any]
) -> None:
    with caplog.at_level(logging.WARNING, "trainwright"):
        short(make_args, make()).train()
        assert "not that of one large batch" not in caplog.text
        short(make_args, make(), gradient_accumulation_steps=2).train()
    assert caplog.text.count("with accumulation over 2 batches the gradient is the mean of those of batches of 4") == 1
    with pytest.raises(ValueError, match=r"micro_batch=2 cuts batches, which changes what \w+ computes"):
        short(make_args, make(), micro_batch=2).train()


def test_those_that_go_by_the_gradients_of_one_process_refuse_several(
    make_args: MakeArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, noisy = short(make_args, SAM()), short(make_args, GradientNoise())
    refuse_pieces(trainer._setup)
    monkeypatch.setattr(TrainingArguments, "data_processes", property(lambda self: 2))
    refuse_pieces(noisy._setup)
    with pytest.raises(ValueError, match="SAM goes by the gradients of one process, and there are 2"):
        refuse_pieces(trainer._setup)


def test_what_could_not_act_is_refused(make_args: MakeArguments) -> None:
    with pytest.raises(ValueError, match="pass compute_loss_func='cross_entropy'"):
        short(make_args, Mixup(), Plain()).train()
    short(make_args, Mixup(), Plain(), compute_loss_func="cross_entropy").train()
    with pytest.raises(ValueError, match="mixes inputs that are numbers, and the batch has x besides"):
        short(make_args, Mixup(), Tokens(), TOKEN_ROWS).train()
    with pytest.raises(ValueError, match="CutMix takes images"):
        short(make_args, CutMix()).train()
    with pytest.raises(ValueError, match=r"the model has no embedding layer: name some in params=, of first.weight"):
        short(make_args, FGM()).train()
    with pytest.raises(ValueError, match="RDrop compares class probabilities"):
        short(make_args, RDrop(), rows=[{**row, "labels": torch.rand(3)} for row in ROWS]).train()
    with pytest.raises(ValueError, match=r"give it to the Trainer as callbacks=\[SAM\(...\)\]"):
        short(make_args, StopAt()).add_callback(SAM())
    for make, words in (
        (lambda: Mixup(alpha=0), "alpha=0 should be a number, more than 0"),
        (lambda: SAM(rho=-1), "rho=-1 should be a number"),
        (lambda: GradientNoise(eta="much"), "eta='much' should be a number"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_weights_come_back_where_a_second_pass_fails(make_args: MakeArguments) -> None:
    class Failing(Bare):
        passes = 0

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            self.passes += 1
            if self.passes == 2:
                raise RuntimeError("the second pass")
            return super().forward(x)

    model = Failing()
    with pytest.raises(RuntimeError, match="the second pass"):
        short(make_args, SAM(rho=5.0), model, rescue_on=[]).train()
    for one, other in zip(model.parameters(), Failing().parameters(), strict=True):
        assert torch.equal(one, other)


def test_several_act_together_also_by_name_and_with_one_of_ones_own(make_args: MakeArguments) -> None:
    class Halved(Modifier):
        def modify_loss(self, loss: Tensor, outputs: Any, inputs: Any) -> Tensor:
            return loss / 2

    def first_loss(*callbacks: Any) -> float:
        args = make_args(max_steps=1, per_device_train_batch_size=16, logging_steps=1)
        trainer = Trainer(Bare(), args, train_dataset=ROWS, callbacks=list(callbacks))
        trainer.train()
        return trainer.state.log_history[0]["loss"]

    plain = first_loss()
    assert first_loss(Halved()) == pytest.approx(plain / 2)
    # Without dropout, two passes are one; noise and the second pass of SAM change what comes after.
    assert first_loss("r_drop", GradientNoise, SAM(), Halved()) == pytest.approx(plain / 2)
    assert first_loss("mixup") != pytest.approx(plain)


def test_an_experiment_names_them_with_options(tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    described: dict[str, Any] = {
        "model": {"name": "cnn", "options": {"width": 4}},
        "data": {"train": "digits", "limit_train": 64, "limit_eval": 16},
        "training": {"output_dir": str(tmp_path / "run"), "max_steps": 2},
        "callbacks": {"mixup": {"alpha": 0.4}, "gradient_noise": None},
    }
    file.write_text(yaml.safe_dump(described, sort_keys=False))

    def modifiers(*words: str) -> list[Modifier]:
        built = build(load_experiment(file, words))
        return built.trainer._setup.modifiers

    mixup, noise = modifiers("callbacks.mixup.alpha=0.3", "--callbacks.gradient_noise.eta", "0.1")
    assert isinstance(mixup, Mixup)
    assert isinstance(noise, GradientNoise)
    assert (mixup.alpha, noise.eta) == (0.3, 0.1)
    built = build(load_experiment(file))
    assert built.trainer.train().global_step == 2
    # They are no recipe, of which a report would show the layers.
    assert not (tmp_path / "run" / "layers.json").exists()
    line = 1 + file.read_text()[: file.read_text().index("mixup")].count("\n")
    for words, problem in (
        (["callbacks.mixup.alpha=no"], r"callbacks.mixup: alpha='no' should be a number"),
        (
            ["callbacks.mixup.alfa=1"],
            rf"yaml:{line}: callbacks.mixup: there is no option 'alfa' \(did you mean 'alpha'",
        ),
        (["callbacks.mixpu.alpha=1"], r"no callback 'mixpu' \(did you mean 'mixup'\?\)"),
    ):
        with pytest.raises(ConfigError, match=problem):
            modifiers(*words)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([SAM(), FGM(params="re:.*")], "SAM and FGM each move the weights for a second pass"),
        ([SAM(), Mixup()], "SAM and Mixup: the second pass would be over another mixture"),
        ([RDrop(), CutMix()], "RDrop and CutMix: the second pass would be over another mixture"),
    ],
)
def test_regularisers_that_undo_each_other_are_refused(tmp_path: Path, given: list[Any], problem: str) -> None:
    args = TrainingArguments(str(tmp_path), max_steps=1, save_strategy="no", report_to="none")
    rows = [{"input": torch.randn(4), "labels": torch.tensor(row % 2)} for row in range(8)]
    with pytest.raises(ValueError, match=problem):
        Trainer(nn.Linear(4, 2), args, train_dataset=rows, callbacks=given, compute_loss_func="cross_entropy").train()


def test_members_of_an_ensemble_are_not_regularised_together(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), max_steps=1, save_strategy="no", report_to="none")
    rows = [{"input": torch.randn(4), "labels": torch.tensor(row % 2)} for row in range(8)]
    for given in (RDrop(), SAM(), FGM(params="re:.*")):
        run = Trainer(Ensemble(lambda: nn.Linear(4, 2), 2), args, train_dataset=rows, callbacks=[given])
        with pytest.raises(ValueError, match="would act on the members of an Ensemble together"):
            run.train()
