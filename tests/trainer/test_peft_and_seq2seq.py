"""Adapters, generation in evaluation, and hyperparameter search."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

import trainwright
from tests.models import Plain, classification_rows, tiny_llama, token_rows
from tests.zoo.catalogue import CATALOGUE
from trainwright import EvalPrediction, Seq2SeqTrainer, Trainer, TrainerCallback, TrainingArguments
from trainwright.core.errors import MissingMetricError

Make = Callable[..., TrainingArguments]


# ---- adapters


def adapted(seed: int = 0) -> Any:
    model = tiny_llama()
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


SAVING: dict[str, Any] = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "learning_rate": 1e-2}


@pytest.mark.slow
def test_only_the_adapter_is_trained_and_saved(make_args: Make, tmp_path: Path) -> None:
    model = adapted()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = Trainer(model, make_args(**SAVING), train_dataset=token_rows(8))
    assert trainer.get_num_trainable_parameters() == sum(p.numel() for n, p in model.named_parameters() if "lora_" in n)
    trainer.train()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "lora_" in name}
    checkpoint = tmp_path / "run" / "checkpoint-6"
    assert not (checkpoint / "model.safetensors").exists()
    stored = load_file(checkpoint / "adapter_model.safetensors")
    assert len(stored) == len(changed)
    again = peft.PeftModel.from_pretrained(tiny_llama(), str(checkpoint))
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.slow
def test_adapters_resume_bit_equal(make_args: Make, tmp_path: Path) -> None:
    rows = token_rows(16)

    def run(folder: str, resume: bool = False, callbacks: Any = None, seed: int = 0) -> Trainer:
        args = make_args(**SAVING, output_dir=str(tmp_path / folder), per_device_train_batch_size=4)
        trainer = Trainer(adapted(seed), args, train_dataset=rows, callbacks=callbacks)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run("whole").model.state_dict()
    assert run("cut", callbacks=[StopAt(3)]).state.global_step == 3
    resumed = run("cut", resume=True, seed=9).model.state_dict()
    for name, value in resumed.items():
        assert torch.equal(value, whole[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_reaches_adapters_on_a_frozen_base(make_args: Make, reentrant: bool) -> None:
    rows = token_rows(8)

    def weights(**kwargs: Any) -> dict[str, Tensor]:
        model = adapted()
        Trainer(model, make_args(max_steps=3, learning_rate=1e-2, **kwargs), train_dataset=rows).train()
        return model.state_dict()

    plain = weights()
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    for name, value in weights(**options).items():
        torch.testing.assert_close(value, plain[name], msg=name)


@pytest.mark.slow
def test_the_best_adapter_is_loaded_at_the_end(make_args: Make, tmp_path: Path) -> None:
    rows = token_rows(8)
    args = make_args(
        **SAVING, eval_strategy="steps", eval_steps=3, load_best_model_at_end=True, metric_for_best_model="loss",
        greater_is_better=True,
    )  # fmt: skip
    trainer = Trainer(adapted(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "run" / "checkpoint-3")
    stored = load_file(tmp_path / "run" / "checkpoint-3" / "adapter_model.safetensors")
    held = peft.get_peft_model_state_dict(trainer.model)  # type: ignore[arg-type]
    for name, value in stored.items():
        assert torch.equal(held[name], value), name


# ---- generation


def seq2seq_args(tmp_path: Path, library: Any, **kwargs: Any) -> Any:
    defaults: dict[str, Any] = {
        "output_dir": str(tmp_path / library.__name__), "predict_with_generate": True, "use_cpu": True,
        "disable_tqdm": True, "report_to": "none", "save_strategy": "no", "per_device_eval_batch_size": 2,
    }  # fmt: skip
    return library.Seq2SeqTrainingArguments(**{**defaults, **kwargs})


GENERATION: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"generation_max_length": 12}, {}),
    ({"generation_max_length": 12, "generation_num_beams": 2}, {}),
    ({}, {"max_length": 9, "num_beams": 2}),
    ({"generation_max_length": 30}, {"max_new_tokens": 6}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize(("settings", "options"), GENERATION)
def test_generated_predictions_are_those_of_transformers(
    tmp_path: Path, name: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    entry = CATALOGUE[name]
    model, rows = entry.model(), entry.rows(5)
    # Without one, transformers generates another length from its second batch on.
    model.generation_config.max_length = 11
    given = (copy.deepcopy(model), seq2seq_args(tmp_path, transformers, **settings))
    reference: Any = transformers.Seq2SeqTrainer(*given, compute_metrics=lengths)  # type: ignore[arg-type]
    theirs = reference.predict(rows, **options)
    trainer = Seq2SeqTrainer(model, seq2seq_args(tmp_path, trainwright, **settings), compute_metrics=lengths)
    ours = trainer.predict(rows, **options)
    for mine, other in ((ours.predictions, theirs.predictions), (ours.label_ids, theirs.label_ids)):
        # transformers pads to the configuration's length, also where an option asks for another.
        width = min(mine.shape[1], other.shape[1])
        assert mine[:, :width].tolist() == other[:, :width].tolist()
        assert not mine[:, width:].any()
        assert not other[:, width:].any()
    assert ours.metrics is not None
    assert ours.metrics["test_mean_length"] == theirs.metrics["test_mean_length"]
    assert ours.metrics["test_loss"] == pytest.approx(theirs.metrics["test_loss"], rel=0.1)
    assert set(ours.metrics) == set(theirs.metrics) - {"test_model_preparation_time"}


@pytest.mark.parametrize(("options", "width"), [({"max_length": 9}, 9), ({"max_new_tokens": 9}, 10)])
def test_generated_tokens_and_labels_are_padded_to_the_length_asked_for(
    tmp_path: Path, options: dict[str, Any], width: int
) -> None:
    output = trainer_for(tmp_path, compute_metrics=None).predict(CATALOGUE["t5"].rows(5), **options)
    assert output.predictions.shape == output.label_ids.shape == (5, width)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default:UserWarning")
def test_generation_that_ends_early_is_padded_with_tokens_that_can_be_decoded(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, compute_metrics=None)
    first = trainer.predict(CATALOGUE["t5"].rows(5)).predictions
    config: Any = trainer.model.generation_config
    config.eos_token_id = int(first[0, 1])  # so that some batches end sooner than others
    output = trainer.predict(CATALOGUE["t5"].rows(5))
    assert output.predictions.shape == first.shape == (5, 21)
    assert output.predictions.min() >= 0


def lengths(prediction: EvalPrediction) -> dict[str, float]:
    assert isinstance(prediction.predictions, np.ndarray)
    return {"mean_length": float((prediction.predictions > 2).sum(-1).mean())}


def trainer_for(tmp_path: Path, **kwargs: Any) -> Seq2SeqTrainer:
    entry = CATALOGUE["t5"]
    given = {"eval_dataset": entry.rows(4), "train_dataset": entry.rows(4), "compute_metrics": lengths}
    given |= {key: kwargs.pop(key) for key in list(kwargs) if key in given}
    return Seq2SeqTrainer(entry.model(), seq2seq_args(tmp_path, trainwright, **kwargs), **given)


def test_generation_in_the_middle_of_training(tmp_path: Path) -> None:
    trainer = trainer_for(
        tmp_path,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        generation_max_length=6,
        metric_for_best_model="mean_length",
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "eval_mean_length" in log]
    assert len(logs) == 2
    assert all(log["eval_loss"] > 0 for log in logs)


def test_a_missing_metric_is_found_before_the_first_step_with_generation_too(tmp_path: Path) -> None:
    trainer = trainer_for(
        tmp_path, max_steps=2, eval_strategy="steps", generation_max_length=6, metric_for_best_model="rouge"
    )
    with pytest.raises(MissingMetricError, match="eval_mean_length"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_generation_options_reach_every_eval_set(tmp_path: Path) -> None:
    widths: list[int] = []

    def width(prediction: EvalPrediction) -> dict[str, float]:
        widths.append(prediction.predictions.shape[1])
        return {}

    rows = CATALOGUE["t5"].rows(4)
    trainer = trainer_for(tmp_path, eval_dataset={"a": rows, "b": rows[:2]}, compute_metrics=width)
    trainer.evaluate(max_length=7)
    trainer.evaluate({"c": rows}, max_length=5, metric_key_prefix="other")
    assert widths == [7, 7, 5]


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default:UserWarning")
@pytest.mark.parametrize("ask", ["evaluate", "predict"])
def test_an_option_of_generation_that_is_none_was_not_given(tmp_path: Path, ask: str) -> None:
    """Example scripts hand over their own arguments, which are None where the user said nothing."""
    seen: list[Any] = []

    def note(prediction: EvalPrediction) -> dict[str, float]:
        seen.append(prediction.predictions.tolist())
        return {}

    trainer = trainer_for(tmp_path, max_steps=1, generation_max_length=6, generation_num_beams=2, compute_metrics=note)
    trainer.train()
    rows = CATALOGUE["t5"].rows(4)
    getattr(trainer, ask)(rows)
    getattr(trainer, ask)(rows, max_length=None, num_beams=None)
    getattr(trainer, ask)(rows, max_length=None, num_beams=None, max_new_tokens=None)
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0][0]) == 6
    unset = trainer_for(tmp_path, max_steps=1, compute_metrics=note)
    unset.train()
    getattr(unset, ask)(rows)
    getattr(unset, ask)(rows, max_length=None, num_beams=None)
    assert seen[3] == seen[4]


def test_options_that_a_copied_evaluate_sets_reach_generation(tmp_path: Path) -> None:
    """Question answering and summarization scripts carry an ``evaluate`` that ends in ``self._gen_kwargs = ...``."""

    class Copied(Seq2SeqTrainer):
        def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval", **gen_kwargs):
            self._gen_kwargs = {"max_length": 7, "num_beams": None, **gen_kwargs}
            return Trainer.evaluate(self, eval_dataset, ignore_keys, metric_key_prefix)

    widths: list[int] = []

    def width(prediction: EvalPrediction) -> dict[str, float]:
        widths.append(prediction.predictions.shape[1])
        return {}

    entry = CATALOGUE["t5"]
    args = seq2seq_args(tmp_path, trainwright)
    Copied(entry.model(), args, eval_dataset=entry.rows(4), compute_metrics=width).evaluate()
    assert widths == [7]


def test_without_generation_it_is_an_ordinary_trainer(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, predict_with_generate=False, compute_metrics=None)
    output = trainer.predict(CATALOGUE["t5"].rows(3))
    logits = output.predictions[0]
    assert logits.shape == (3, 8, 32)


# ---- hyperparameter search


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_search_tries_arguments_and_puts_them_back(make_args: Make, tmp_path: Path) -> None:
    tried: list[tuple[float, float, int | None]] = []
    norms: list[float] = []

    class Note(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert state.is_hyper_param_search
            assert state.trial_params["learning_rate"] == args.learning_rate
            tried.append((args.learning_rate, args.max_grad_norm, args.data_seed))

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))

    rows = classification_rows(16)
    args = make_args(max_steps=8, learning_rate=0.5, eval_strategy="steps", eval_steps=4, seed=3)
    trainer = Trainer(
        model_init=lambda: Plain().float(), args=args, train_dataset=rows, eval_dataset=rows, callbacks=[Note()]
    )

    def space(trial: Any) -> dict[str, Any]:
        rate = trial.suggest_categorical("learning_rate", [1e-5, 3e-2])
        return {"learning_rate": rate, "max_grad_norm": "0.125", "data_seed": 7}

    import optuna

    sampler = optuna.samplers.GridSampler({"learning_rate": [1e-5, 3e-2]})
    best = trainer.hyperparameter_search(
        space, n_trials=2, sampler=sampler, hp_name=lambda trial: f"try-{trial.number}"
    )
    assert sorted(tried) == [(1e-5, 0.125, 7), (3e-2, 0.125, 7)]
    assert max(norms) == pytest.approx(0.125, rel=1e-3)
    assert best.hyperparameters["learning_rate"] == 3e-2
    assert best.run_id in ("0", "1")
    assert isinstance(best.objective, float)
    assert best.objective < 1.1
    assert (trainer.args.learning_rate, trainer.args.max_grad_norm, trainer.args.data_seed) == (0.5, 1.0, None)
    assert trainer.args.output_dir == str(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").glob("try-*")) == ["try-0", "try-1"]
    trainer.remove_callback(Note)
    assert trainer.train().global_step == 8
    assert not trainer.state.is_hyper_param_search


def test_a_trial_that_is_given_up_leaves_no_checkpoint(make_args: Make, tmp_path: Path) -> None:
    import optuna

    class Hopeless(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number == 0

    rows = classification_rows(16)
    args = make_args(max_steps=4, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=4)
    trainer = Trainer(model_init=lambda: Plain().float(), args=args, train_dataset=rows, eval_dataset=rows)
    best = trainer.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)},
        n_trials=2,
        pruner=Hopeless(),
    )
    assert best.run_id == "1"
    saved = [path.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").glob("*/checkpoint-*")]
    assert saved == ["run-1/checkpoint-4"]
    assert not (tmp_path / "run/run-0/events.jsonl").exists()


def test_a_search_refuses_what_it_cannot_do(make_args: Make) -> None:
    rows = classification_rows(8)
    with pytest.raises(ValueError, match="model_init="):
        Trainer(Plain().float(), make_args(), train_dataset=rows).hyperparameter_search()
    trainer = Trainer(
        model_init=lambda: Plain().float(), args=make_args(max_steps=1), train_dataset=rows, eval_dataset=rows
    )
    with pytest.raises(ValueError, match="'ray'"):
        trainer.hyperparameter_search(backend="ray")
    with pytest.raises(ValueError, match="learning_rat"):
        trainer.hyperparameter_search(lambda trial: {"learning_rat": 1.0}, n_trials=1)
