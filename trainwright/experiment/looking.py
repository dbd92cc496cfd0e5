"""``trainwright look`` and ``lr-find``: questions about an experiment before it is trained; nothing is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded
from trainwright.experiment.building import Built, build
from trainwright.experiment.checking import level_put_back, writing_to
from trainwright.experiment.running import is_refusal
from trainwright.looking.batch import BatchView
from trainwright.looking.found_rates import LearningRates
from trainwright.looking.summary import Summary


def look(loaded: Loaded, *, rows: int, depth: int) -> tuple[BatchView, Summary]:
    """The first batch and the model of what an experiment describes."""
    with _built(loaded) as built:
        alphabet = built.prepared.facts.get("alphabet")
        letters = None if alphabet is None else Letters(alphabet)
        return built.trainer.show_batch(rows, tokenizer=letters), built.trainer.summary(depth)


def lr_find(loaded: Loaded, *, least: float, greatest: float, steps: int) -> LearningRates:
    """At which learning rate the loss of an experiment's model falls fastest."""
    with _built(loaded) as built:
        return built.trainer.lr_find(least, greatest, steps)


class Letters:
    """Reads the numbers of a character model as text."""

    def __init__(self, alphabet: str) -> None:
        self._alphabet = alphabet

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(self._alphabet[one] if 0 <= one < len(self._alphabet) else "?" for one in tokens)


@contextmanager
def _built(loaded: Loaded) -> Iterator[Built]:
    with tempfile.TemporaryDirectory(prefix="trainwright-look-") as folder, level_put_back():
        built = build(writing_to(loaded, folder))
        try:
            yield built
        except ValueError as error:
            if isinstance(error, ConfigError) or not is_refusal(error):
                raise
            raise ConfigError(f"{loaded.document.source}: {error}") from error
