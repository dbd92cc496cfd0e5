"""``TrainingArguments``: what the user said, with transformers' names, types and defaults.

Construction turns values into their types, translates names of older releases, fills what was left open and refuses
contradictions, in that order. It imports no framework: questions about hardware go to a probe, when they are asked.
"""

import math
from dataclasses import dataclass

from trainwright.config.coerce import coerce
from trainwright.config.derive import derive
from trainwright.config.help import attach_help
from trainwright.config.keywords import suggest_in_constructor
from trainwright.config.process import ProcessView
from trainwright.config.removal import READY, RULES, translate
from trainwright.config.resolution import Resolution, snapshot
from trainwright.config.run_directory import working_directory
from trainwright.config.serialize import Serialization
from trainwright.config.setters import Setters
from trainwright.config.support import refuse_unsupported, warn_without_effect
from trainwright.config.validate import validate


@dataclass(repr=False)
class TrainingArguments(Serialization, ProcessView, Setters):
    """Everything that can be set about a training run. The fields are in ``trainwright/config/fields``.

    ``TrainingArguments("out", learning_rate=1e-4)`` is enough to start. The class may be subclassed as a dataclass,
    parsed by ``HfArgumentParser``, copied and passed to ``dataclasses.replace``.
    """

    def __post_init__(self) -> None:
        origin = self._resolution
        self.__dict__.pop(READY, None)
        # A copy starts from what the user said, and has been warned about already.
        repeated = origin.undo_in(self) if isinstance(origin, Resolution) else set()
        coerce(self)
        translate(self, [name for name in RULES if name not in repeated])
        given = snapshot(self)
        derive(self)
        made = snapshot(self)
        validate(self)
        refuse_unsupported(self)
        if origin is None:
            warn_without_effect(self)
        changed = {name: (given[name], made[name]) for name in made if made[name] is not given[name]}
        made_in = origin.working_directory if isinstance(origin, Resolution) else working_directory()
        self._resolution = Resolution(self, changed, made_in)
        self.__dict__[READY] = True

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Steps of warm-up in a run of the given length."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)


attach_help(TrainingArguments)
suggest_in_constructor(TrainingArguments)
