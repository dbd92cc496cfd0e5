"""One run of the user's script, observed: ``python -m trainwright.trying.child PLAN.json``."""

from __future__ import annotations

import os
import random
import runpy
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from trainwright.config.warnings import TrainwrightWarning
from trainwright.trying.plan import OURS, THEIRS, Plan

#: Seeds whatever a script leaves to chance before its Trainer does, so that all runs begin with the same weights.
SEED = 42


def main(path: Path) -> None:
    """Run the script of a plan as ``python script.py`` would; it ends when its first ``train()`` has."""
    plan = Plan.read(path)
    # Before anything that takes long: what a script may change must not be missed.
    script = Path(plan.script)
    sys.argv = [plan.script, *plan.words]
    sys.path.insert(0, str(script.resolve().parent))

    from trainwright.trying.safety import upload_nothing

    upload_nothing()
    from trainwright.trying.observe import classes, observe
    from trainwright.trying.recorder import Recorder
    from trainwright.trying.refusing import refuse_in_children

    theirs, ours = classes(THEIRS), classes(OURS)
    resume_from = _exported(plan) if plan.export_from else plan.resume_from
    if plan.library == OURS:
        from trainwright.compat.transformers_door import open_door

        open_door()
    recorder = Recorder(plan, resume_from)
    observe(recorder, theirs, ours)
    refuse_in_children(plan.folder)
    if plan.repeatable:
        _add_in_the_same_order()
    _note_our_warnings(recorder.facts)
    _seed()
    try:
        runpy.run_path(plan.script, run_name="__main__")
    except SystemExit as leaving:
        recorder.end("left" if leaving.code else "never trained", code=str(leaving.code))
    except BaseException as error:
        recorder.end("failed", traceback="".join(_shown(error, script)))
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    else:
        # A script may swallow what its training raised.
        recorder.end("failed" if "traceback" in recorder.facts else "never trained")


def _exported(plan: Plan) -> str:
    from trainwright.checkpoint.interchange.to_transformers import export_checkpoint

    return str(export_checkpoint(Path(plan.export_from), Path(plan.folder) / "exported").folder)


def _note_our_warnings(facts: dict[str, Any]) -> None:
    """Keep what our Trainer warns of: it belongs under the table."""
    shown = warnings.showwarning

    def show(message: Any, category: Any, *words: Any, **named: Any) -> None:
        if issubclass(category, TrainwrightWarning) and str(message) not in facts.setdefault("warnings", []):
            facts["warnings"].append(str(message))
        shown(message, category, *words, **named)

    warnings.showwarning = show


def _add_in_the_same_order() -> None:
    """Ask torch for algorithms that give the same bits each time; an operation without one raises an error.

    With ``warn_only=True`` it would not: the backward pass of attention then adds as it likes.
    """
    import torch

    # cuBLAS reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def _seed() -> None:
    import numpy
    import torch

    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)


def _shown(error: BaseException, script: Path) -> list[str]:
    """The traceback from the script's own first line on."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((n for n, frame in enumerate(frames) if Path(frame.filename) == script), 0)
    return [*traceback.format_list(frames[first:]), *traceback.format_exception_only(error)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
