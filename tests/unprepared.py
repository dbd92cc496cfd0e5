"""A Trainer without the look, before the first step, for a cut of batches that fits into memory."""

from __future__ import annotations

from typing import Any

import pytest

from trainwright import Trainer, TrainOutput
from trainwright.training import train as training


class Unprepared(Trainer):
    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "look_for_what_fits", lambda run: None)
            return super().train(*args, **kwargs)
