"""A model and data of one's own: both go to the Trainer as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.config.loading import Loaded
from trainwright.experiment.models import build_local, is_local
from trainwright.experiment.tasks.base import Given, Prepared


class Own:
    """Nothing is assumed about rows; the model has its own loss, or takes ``labels``."""

    reads = ()

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        return {}

    def prepare(self, given: Given) -> Prepared:
        if not is_local(given.loaded):
            raise given.loaded.error(("model", "task"), "own is for models of your own: my_file.py:Class.")
        return Prepared(
            model=build_local(given.loaded),
            encode=lambda rows: rows,
            describe=_described,
        )


def _described(predictions: Any) -> list[dict[str, Any]]:
    found = predictions[0] if isinstance(predictions, tuple) else predictions
    return [{"prediction": np.asarray(row).tolist()} for row in found]
