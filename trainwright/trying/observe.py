"""Watch a training without touching its script: the classes it uses are wrapped before it imports them."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import trainwright
from trainwright.training import build
from trainwright.trying.plan import OURS, THEIRS, Plan
from trainwright.trying.recorder import Recorder
from trainwright.trying.refusing import refuse_to_train
from trainwright.trying.safety import redirect, shorten


def classes(library: str) -> tuple[Any, Any]:
    """The Trainer and the TrainingArguments of a library, whatever door is open."""
    if library == OURS:
        return trainwright.Trainer, trainwright.TrainingArguments
    import transformers

    return transformers.Trainer, transformers.TrainingArguments


def observe(recorder: Recorder, theirs: tuple[Any, Any], ours: tuple[Any, Any]) -> None:
    """Wrap the classes of both libraries: arguments of transformers' class may be handed to our Trainer."""
    for _, arguments in (theirs, ours):
        _wrap_arguments(arguments, recorder.plan)
    trainer, arguments = ours if recorder.plan.library == OURS else theirs
    _wrap_making(trainer, arguments, recorder)
    _wrap_training(trainer, recorder)
    _wrap_saving(trainer, recorder.plan)
    if recorder.plan.library == OURS:
        _wrap_batches(recorder)
    if recorder.plan.probe:
        _switch_dropout_off()


def _wrap_arguments(arguments: Any, plan: Plan) -> None:
    original = arguments.__post_init__

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        redirect(self, plan)
        original(self)
        shorten(self, plan)

    arguments.__post_init__ = post_init


def _wrap_making(trainer: Any, arguments: Any, recorder: Recorder) -> None:
    original = trainer.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *words: Any, **named: Any) -> None:
        began = recorder.now()
        bound = _bound(signature, original, self, *words, **named)
        given = bound.arguments.get("args")
        if given is None:
            bound.arguments["args"] = arguments(output_dir=str(recorder.plan.output_dir))
        else:
            # A script may have changed them since.
            redirect(given, recorder.plan)
            shorten(given, recorder.plan)
        original(*bound.args, **bound.kwargs)
        if recorder.plan.library == THEIRS:
            # Where transformers writes checkpoints and deletes older ones; a subclass may say otherwise.
            self._get_output_dir = lambda trial=None: str(recorder.plan.output_dir)
        self.add_callback(recorder)
        recorder.facts["construction_seconds"] = recorder.now() - began

    trainer.__init__ = init


def _wrap_training(trainer: Any, recorder: Recorder) -> None:
    original = trainer.train
    signature = inspect.signature(original)

    @functools.wraps(original)
    def train(self: Any, *words: Any, **named: Any) -> Any:
        if os.getpid() != recorder.process:
            refuse_to_train()
        bound = _bound(signature, original, self, *words, **named)
        if bound.arguments.get("resume_from_checkpoint"):
            recorder.facts["resumes"] = str(bound.arguments["resume_from_checkpoint"])
        bound.arguments["resume_from_checkpoint"] = recorder.resume_from or None
        # A script may have changed them since the Trainer was made.
        redirect(self.args, recorder.plan)
        shorten(self.args, recorder.plan)
        recorder.begin(self, own_files(recorder.plan))
        try:
            original(*bound.args, **bound.kwargs)
        except Exception:
            recorder.facts["traceback"] = traceback.format_exc()
            raise
        recorder.finish()
        leave()

    trainer.train = train


def _wrap_saving(trainer: Any, plan: Plan) -> None:
    """Let ``save_model("./mine")`` write into the run's own folder."""
    original = trainer.save_model
    own = Path(plan.folder).resolve()

    @functools.wraps(original)
    def save_model(self: Any, output_dir: Any = None, *words: Any, **named: Any) -> Any:
        if output_dir is not None and not Path(output_dir).resolve().is_relative_to(own):
            output_dir = str(Path(plan.folder) / "saved" / Path(output_dir).name)
        return original(self, output_dir, *words, **named)

    trainer.save_model = save_model


def _wrap_batches(recorder: Recorder) -> None:
    """Let the recorder see each batch of ours where its tokens are counted: no method is overridden by that."""
    original = build.step_observer

    def observer(run: Any) -> Callable[[list[Any]], None]:
        count = original(run)

        def observe_step(batches: list[Any]) -> None:
            if count is not None:
                count(batches)
            for batch in batches:
                recorder.note_batch(batch)

        return observe_step

    build.step_observer = observer


def _bound(signature: inspect.Signature, original: Callable[..., Any], *words: Any, **named: Any) -> Any:
    try:
        return signature.bind(*words, **named)
    except TypeError:
        # Python's own message names the function.
        original(*words, **named)
        raise


def leave() -> None:
    """End this process: what the script does after its training is not run, nor anything it set up to run at exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def own_files(plan: Plan) -> list[str]:
    """Python files of the user's that the script has imported, itself first."""
    package = Path(trainwright.__file__).parent
    found = [str(Path(plan.script).resolve())]
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or not name.endswith(".py"):
            continue
        path = Path(name).resolve()
        is_own = any(path.is_relative_to(folder) for folder in plan.own_folders)
        if is_own and "site-packages" not in path.parts and not path.is_relative_to(package):
            found.append(str(path))
    return list(dict.fromkeys(found))


def _switch_dropout_off() -> None:
    """Without random draws in the model: losses that still differ do so for another reason."""
    functional: Any = torch.nn.functional
    for name in ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"):
        setattr(functional, name, lambda input, *words, **named: input)
    attention = functional.scaled_dot_product_attention

    @functools.wraps(attention)
    def without_dropout(
        query: Any, key: Any, value: Any, mask: Any = None, dropout_p: float = 0.0, **named: Any
    ) -> Any:
        named = {"attn_mask": mask, **named}
        return attention(query, key, value, **named)

    functional.scaled_dot_product_attention = without_dropout
