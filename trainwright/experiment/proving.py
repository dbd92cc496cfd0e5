"""``trainwright prove``: what must not change an experiment's training is changed, in a folder that goes away."""

from __future__ import annotations

import tempfile

from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded
from trainwright.experiment.building import build
from trainwright.experiment.checking import level_put_back, writing_to
from trainwright.experiment.running import is_refusal
from trainwright.proving.result import Proof


def prove(loaded: Loaded, *, budget: float, seed: int | None = None) -> Proof:
    """Compare short trainings of what an experiment describes, for about ``budget`` seconds."""
    with tempfile.TemporaryDirectory(prefix="trainwright-prove-") as folder, level_put_back():
        built = build(writing_to(loaded, folder))
        try:
            return built.trainer.prove(budget, seed=seed)
        except ValueError as error:
            if isinstance(error, ConfigError) or not is_refusal(error):
                raise
            raise ConfigError(f"{loaded.document.source}: {error}") from error
