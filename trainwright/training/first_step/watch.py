"""Watches a run's first step, and is gone from the second on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainwright.core.errors import FirstStepError, lost_a_peer
from trainwright.engines.torch.memory import is_out_of_memory
from trainwright.training.first_step.inputs import (
    explain_columns,
    explain_missing_labels,
    explain_ragged_samples,
    explain_values_of_none,
    explain_words_as_labels,
)
from trainwright.training.first_step.layers import RAISED_BY_TORCH, explain_layer, note_on
from trainwright.training.first_step.losses import explain_loss, explain_outputs
from trainwright.training.first_step.scene import IN_AN_EVALUATION, Scene, said
from trainwright.training.first_step.targets import explain_labels, explain_labels_on_a_device, refuse_impossible_labels
from trainwright.training.run import TrainingRun

_EXPLANATIONS: tuple[Callable[[Scene], str | None], ...] = (
    explain_values_of_none,
    explain_words_as_labels,
    explain_ragged_samples,
    explain_columns,
    explain_outputs,
    explain_missing_labels,
    explain_labels,
    explain_loss,
    explain_layer,
    explain_labels_on_a_device,
)


class FirstStep:
    """Takes the place of the run's observer for one step, and keeps its batches meanwhile."""

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._usual = run, run.observe_step
        self._batches: list[Any] = []
        self.is_over = False
        run.observe_step = self

    def __call__(self, batches: list[Any]) -> None:
        if self._usual is not None:
            self._usual(batches)
        if self._batches or self.is_over:
            self.end()
            return
        self._batches = batches
        refuse_impossible_labels(self._run.setup, batches)

    def end(self) -> None:
        """The step went well, or the run is over."""
        self._batches, self.is_over = [], True
        # Somebody may have put an observer of his own around this one since.
        if self._run.observe_step is self:
            self._run.observe_step = self._usual

    def explain(self, error: Exception) -> None:
        """Raise an error that says why the first step failed, where that is known; else leave a note where."""
        if self.is_over or not isinstance(error, RAISED_BY_TORCH) or is_out_of_memory(error) or lost_a_peer(error):
            return
        if any(IN_AN_EVALUATION in note for note in getattr(error, "__notes__", ())):
            # Evaluated before the second step; it has been said what is wrong.
            return
        scene = Scene.of(self._run.setup, self._batches, error)
        for explain in _EXPLANATIONS:
            if (text := said(explain, scene)) is not None:
                raise FirstStepError(text) from error
        if (note := said(note_on, scene)) is not None:
            error.add_note(note)
