"""``SamplePredictions``: what a model makes of the same few samples, at each evaluation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trainwright.config.arguments import TrainingArguments
from trainwright.config.run_directory import run_directory
from trainwright.core.callback import TrainerCallback
from trainwright.core.data_words import DataWords
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.core.step_lines import StepLines
from trainwright.data.collators import collate_any
from trainwright.engines.torch.randomness import random_state, set_random_state
from trainwright.engines.torch.targets import unwrap
from trainwright.randomness.own_generators import OwnGenerators
from trainwright.training.sample_answers import answer

logger = logging.getLogger("trainwright")

FILE = "samples.jsonl"
_MOST_SAMPLES = 64


class SamplePredictions(TrainerCallback):
    """Shows a few fixed samples, with what the model makes of them, at every evaluation.

    A language model writes on after the beginning of a text, a classifier names a class and how sure it is of it.
    Lines go to ``samples.jsonl`` in the run directory, and as text to trackers that take text. Nothing is drawn at
    random, and the training is the same with and without.

    Args:
        count: How many samples, evenly spread over the data.
        dataset: Samples as the Trainer's own data has them; those of the evaluation unless given.
        max_new_tokens: How much a language model writes.
        classes: Names of classes; those of ``trainer.data_words`` or the model's config unless given.

    >>> SamplePredictions(count=8).count
    8
    """

    def __init__(
        self,
        count: int = 4,
        *,
        dataset: Any = None,
        max_new_tokens: int = 40,
        classes: Sequence[str] | None = None,
    ) -> None:
        if not 1 <= count <= _MOST_SAMPLES:
            raise ValueError(f"SamplePredictions(count={count}): choose 1 to {_MOST_SAMPLES} samples.")
        if max_new_tokens < 1:
            raise ValueError(f"SamplePredictions(max_new_tokens={max_new_tokens}): a text has at least one.")
        self.count, self.dataset, self.max_new_tokens, self.classes = count, dataset, max_new_tokens, classes
        self._lines: StepLines | None = None
        #: Which set's evaluation shows them, and the samples themselves: fetched once, so that they stay the same.
        self._shown_at: str | None = None
        self._samples: list[tuple[Any, Any]] = []
        self._gave_up = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._shown_at, self._samples, self._gave_up, self._lines = None, [], False, None
        if any(isinstance(parameter, DTensor) for parameter in kwargs["model"].parameters()):
            logger.warning("SamplePredictions is left out: no process has the whole of a weight.")
        elif state.is_world_process_zero and args.should_save and not kwargs.get("is_over"):
            self._lines = StepLines(run_directory(args) / FILE)
            self._lines.begin(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._lines, self._shown_at, self._samples = None, None, []

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        loader, lines = kwargs.get("eval_dataloader"), self._lines
        if lines is None or self._gave_up:
            return
        dataset = getattr(loader, "dataset", None) if self.dataset is None else self.dataset
        evaluated = _set_of(kwargs.get("metrics") or {})
        if self._shown_at not in (None, evaluated):
            # One of several sets is shown, the first.
            return
        model = unwrap(kwargs["model"])
        try:
            with _nothing_moves(model, dataset, loader):
                if self._shown_at is None:
                    self._samples, self._shown_at = _fetch(dataset, loader, self.count), evaluated
                entries = [self._entry(model, row, batch, args, kwargs) for row, batch in self._samples]
        except Exception as error:
            self._gave_up = True
            logger.warning(
                "SamplePredictions is switched off; training goes on. It calls the model without labels: %s: %s",
                type(error).__name__,
                error,
            )
            return
        step = state.global_step
        lines.add(*({"step": step, "sample": number, **entry} for number, entry in enumerate(entries)))
        for tracker in kwargs.get("trackers") or ():
            tracker.offer("log_text", "samples", _as_text(entries), step)

    def _entry(
        self, model: nn.Module, row: Any, batch: Any, args: TrainingArguments, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        on_device = _moved(batch, args.device)
        words: DataWords = kwargs["data_words"]
        if self.classes is not None:
            words = replace(words, classes=self.classes)
        return answer(model, on_device, row, kwargs.get("processing_class"), words, self.max_new_tokens)


def _set_of(metrics: Mapping[str, Any]) -> str:
    """What the names of an evaluation's numbers begin with: it is that of a set, where there are several."""
    ending = "_runtime"
    return next((name.removesuffix(ending) for name in metrics if name.endswith(ending)), "eval")


def _fetch(dataset: Any, loader: Any, count: int) -> list[tuple[Any, Any]]:
    """Rows, each with the batch that it is alone."""
    try:
        length = len(dataset)
    except TypeError:
        raise ValueError("the data has no length; pass SamplePredictions(dataset=[...]) a few samples") from None
    places = sorted({round(place * (length - 1) / max(count - 1, 1)) for place in range(min(count, length))})
    rows = [dataset[place] for place in places]
    collate = getattr(loader, "collate_fn", None) or collate_any
    return [(row, collate([row])) for row in rows]


@contextmanager
def _nothing_moves(model: nn.Module, dataset: Any, loader: Any) -> Iterator[None]:
    """Evaluate within; afterwards modes and random generators are as they were, those of the data's objects too."""
    collate = getattr(loader, "collate_fn", None)
    own = OwnGenerators(lambda: {"model": model, "dataset": dataset, "collator": collate}, iterators=False)
    states, randomness = own.capture(), random_state()
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training
        set_random_state(*randomness)
        own.restore(states)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if hasattr(value, "items"):
        return {name: _moved(one, device) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_moved(one, device) for one in value]
    return value


def _as_text(entries: Sequence[dict[str, Any]]) -> str:
    blocks = []
    for number, entry in enumerate(entries, 1):
        shown = "(picture)" if entry["kind"] == "image" else entry["input"]
        sure = "" if entry["probability"] is None else f" ({entry['probability']:.0%})"
        blocks.append(f"{number}. {shown}\n   -> {entry['prediction']}{sure}\n   true: {entry['label']}")
    return "\n\n".join(blocks)
