"""Methods of transformers' Trainer that a subclass may override: none is unknown, and those said to be called are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.architecture.hf_methods import installed, methods_in
from tests.models import Plain, classification_rows
from trainwright import Seq2SeqTrainer, Trainer, TrainingArguments
from trainwright.training.hf_methods import HF_METHODS
from trainwright.training.overrides import FOLLOWED, INSTEAD, LOOPS

#: Nobody but a script calls these, in transformers too; and what belongs to the Hub, which a test cannot reach.
BY_SCRIPTS = {
    "add_callback", "create_model_card", "end", "get_num_trainable_parameters", "get_optimizer_group",
    "hyperparameter_search", "init_hf_repo", "pop_callback", "predict", "push_to_hub", "remove_callback",
}  # fmt: skip


def test_the_table_has_every_method_of_the_installed_transformers() -> None:
    """`python -m tests.architecture.hf_methods` writes it; then say in training/overrides.py what becomes of each."""
    folder, _ = installed()
    assert methods_in(folder) - set(HF_METHODS) == set()


def test_each_method_is_said_to_be_called_or_not() -> None:
    assert set(HF_METHODS) >= FOLLOWED | set(INSTEAD) | set(LOOPS)
    assert FOLLOWED & set(INSTEAD) == set()
    assert {name for name in FOLLOWED if not hasattr(Seq2SeqTrainer, name)} == set()


def recording(names: set[str], seen: set[str]) -> dict[str, Any]:
    def recorded(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.add(name)
            return getattr(super(Recording, self), name)(*args, **kwargs)

        return method

    class Recording(Trainer): ...

    for name in names:
        setattr(Recording, name, recorded(name))
    return {"class": Recording}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::trainwright.config.TrainwrightWarning")
def test_what_is_said_to_be_called_is_called(make_args: Callable[..., TrainingArguments], tmp_path: Path) -> None:
    seen: set[str] = set()
    kind: Any = recording(set(FOLLOWED), seen)["class"]
    rows: Any = classification_rows(16)
    plain = [{name: value.tolist() for name, value in row.items()} for row in rows]
    settings: dict[str, Any] = {
        "max_steps": 2, "save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1,
        "load_best_model_at_end": True, "metric_for_best_model": "loss", "logging_steps": 1,
    }  # fmt: skip
    trainer = kind(args=make_args(**settings), model_init=lambda: Plain().float(),
                   train_dataset=datasets.Dataset.from_list(plain), eval_dataset=rows)  # fmt: skip
    trainer.train()
    trainer.train(str(tmp_path / "run" / "checkpoint-1"))
    trainer.predict(rows)
    trainer.save_model()
    assert FOLLOWED - BY_SCRIPTS - seen == set()
