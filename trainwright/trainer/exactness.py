"""Trainer methods for random states: those of the libraries, and of generators that users' objects keep."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from trainwright.core import generators
from trainwright.core.events import RunEvents
from trainwright.data.own_data import say_what_is_wrong
from trainwright.engines.torch.randomness import RandomState, random_state, set_random_state, with_own
from trainwright.engines.torch.targets import unwrap
from trainwright.trainer.evaluation import EvaluationMethods
from trainwright.trainer.signatures import is_ours

#: Attributes of every Trainer that are the user's objects and draw elsewhere, or not in training.
_LOOKED_AT_ELSEWHERE = {
    "args",
    "model",
    "model_wrapped",
    "model_init",
    "train_dataset",
    "eval_dataset",
    "data_collator",
}
_LOOKED_AT_ELSEWHERE |= {"optimizer", "lr_scheduler", "processing_class", "callback_handler", "modifiers"}
_LOOKED_AT_ELSEWHERE |= {"compute_metrics", "preprocess_logits_for_metrics", "compute_loss_func"}
_LIBRARIES = frozenset(("builtins", "torch", "numpy", "trainwright", "transformers", "datasets", "peft", "accelerate"))


class ExactnessMethods(EvaluationMethods):
    """Read and restore everything that a step draws from."""

    _events: RunEvents

    def _watch_generators(self) -> None:
        """Before a training: find the generators that take part in its steps."""
        # Callbacks often hold the Trainer, which leads to everything.
        data = (self.train_dataset, self.eval_dataset, self.data_collator, self.processing_class)
        self.engine.own.watch(self._own_roots, iterators=False, passed_by=(self, self.args, *data))

    def _own_roots(self) -> dict[str, Any]:
        """Whatever of the user's may draw random numbers in a step."""
        roots: dict[str, Any] = {"model": unwrap(self.model), "compute_loss_func": self.compute_loss_func}
        named = [("optimizer", self.optimizer), ("lr_scheduler", self.lr_scheduler)]
        named += [(type(callback).__name__, callback) for callback in self.callback_handler.callbacks]
        named += [(type(modifier).__name__, modifier) for modifier in self.modifiers]
        for name, thing in named:
            if type(thing).__module__.split(".")[0] not in _LIBRARIES:
                roots[f"{name} {len(roots)}" if name in roots else name] = thing
        teachers = [teacher for m in self.modifiers if (teacher := getattr(m, "teacher", None)) is not None]
        return {**roots, **{f"teacher {place}": one for place, one in enumerate(teachers)}, **dict(self._of_subclass())}

    def _of_subclass(self) -> Iterator[tuple[str, Any]]:
        """List what a subclass of the Trainer brings: its methods, and attributes of its instance."""
        for kind in type(self).__mro__:
            if kind.__module__.split(".")[0] in _LIBRARIES:
                break
            for name, method in vars(kind).items():
                if isinstance(method, types.FunctionType):
                    yield f"trainer.{name}()", method
        if is_ours(self):
            return
        for name, value in vars(self).items():
            is_theirs = type(value).__module__.split(".")[0] not in _LIBRARIES
            if name not in _LOOKED_AT_ELSEWHERE and (is_theirs or generators.kind_of(value) is not None):
                yield f"trainer.{name}", value

    def _random_now(self) -> RandomState:
        """State of all generators as they are now."""
        own = self.engine.own
        return with_own(random_state(), own.to_json(own.capture()))

    def _say_what_came_late(self) -> None:
        """Name generators that a resumed run will not have when it takes up its states."""
        late, self.engine.own.late = self.engine.own.late, []
        if late and self._backend.rank == 0:
            self._events.record(
                "not_exact",
                f"A resume of this run will not be exact: {', '.join(late)} came only with the first step, and a "
                "resumed run makes them anew; make random generators when the model is built.",
            )

    def _restore_random_state(self, random: RandomState) -> None:
        set_random_state(*random)
        say_what_is_wrong(self.engine.own.load(random[1].get("own", {})))
