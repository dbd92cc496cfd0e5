"""What is asked of Trackio, and the process in which it is asked: ``trackio.py`` starts this file as a script.

It imports nothing of trainwright.
"""

from __future__ import annotations

import html
import json
import os
import re
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

_LEVELS = {"done": "INFO", "stopped": "WARN", "failed": "ERROR"}
_TEXTS = {"done": "The training is done.", "stopped": "The training was stopped.", "failed": "The training failed."}


def begin(folder: str, needs_account: bool, earlier_id: str | None, **about: Any) -> Any:
    """A run of the package, which writes into ``TRACKIO_DIR``; ``about`` goes to ``trackio.init``."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    # The package would go on without a word where it cannot write.
    with tempfile.TemporaryFile(dir=folder):
        pass
    import huggingface_hub
    import trackio

    if needs_account and huggingface_hub.get_token() is None:
        raise ValueError("report_to='trackio' with a Space needs HF_TOKEN, or `hf auth login`.")
    run = trackio.init(
        resume="allow" if earlier_id else "never", embed=False, auto_log_gpu=False, auto_log_cpu=False, **about
    )
    if earlier_id:
        # The package looks for the name, which a later run may have too.
        run.id = earlier_id
    return run


def log(run: Any, values: dict[str, float], step: int) -> None:
    """Numbers of one step; NaN and infinity too."""
    run.log(values, step=step)


def log_image(run: Any, name: str, file: str, step: int) -> None:
    """A picture, which is copied before this returns."""
    import trackio

    run.log({name: trackio.Image(file)}, step=step)


def log_histogram(run: Any, name: str, counts: list[int], edges: list[float], step: int) -> None:
    """Counts of numbers between edges."""
    import trackio

    run.log({name: trackio.Histogram(np_histogram=(counts, edges))}, step=step)


def log_text(run: Any, name: str, text: str, step: int) -> None:
    """Text, shown as it is: the package's Markdown knows no blocks of code."""
    import trackio

    page = f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
    run.log({name: trackio.Html(page)}, step=step)


def log_artifact(run: Any, path: str, name: str) -> None:
    """A file or a folder, with only the characters that names of artifacts may have there."""
    run.log_artifact(path, name=re.sub(r"[^A-Za-z0-9._-]", "-", name), type="file")


def finish(run: Any, status: str | None, static_space_id: str | None, bucket_id: str | None) -> None:
    """Write what is left; ``status`` stands among the run's alerts, as the package has no other place for it."""
    import trackio

    if status is not None:
        run.alert(title=status, text=_TEXTS[status], level=trackio.AlertLevel[_LEVELS[status]])
    trackio.finish()
    if static_space_id is None:
        return
    try:
        if (space := trackio.context_vars.current_space_id.get()) is not None:
            trackio.freeze(space_id=space, project=run.project, new_space_id=static_space_id)
        else:
            trackio.sync(project=run.project, sdk="static", space_id=static_space_id, bucket_id=bucket_id, force=True)
    except Exception as error:
        warnings.warn(f"the static Space {static_space_id} could not be written: {error}", stacklevel=2)


CALLS: dict[str, Callable[..., None]] = {
    "log": log,
    "log_image": log_image,
    "log_histogram": log_histogram,
    "log_text": log_text,
    "log_artifact": log_artifact,
    "finish": finish,
}


def main() -> None:
    """Answer until told to finish, or until nobody is there to ask."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            # Meant for the training, which tells us how it ended.
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    questions, answers = _own_streams()
    heard = _hear_warnings()
    run: Any = None
    for line in questions:
        question = json.loads(line)
        verb = question.pop("do")
        reply: dict[str, Any] = {"answer": None}
        try:
            if verb == "start":
                run = begin(**question)
                reply["answer"] = run.id
            else:
                CALLS[verb](run, **question)
        except Exception as error:
            is_mistake = isinstance(error, (ValueError, TypeError, ImportError)) and not isinstance(error, OSError)
            reply = {"error": str(error) or type(error).__name__, "is_mistake": is_mistake}
        reply["warnings"] = heard[:]
        del heard[: len(reply["warnings"])]
        try:
            print(json.dumps(reply), file=answers, flush=True)
        except OSError:
            break
        if verb == "finish" and "answer" in reply:
            return
    if run is not None:
        import trackio

        trackio.finish()


def _own_streams() -> tuple[IO[str], IO[str]]:
    """Questions and answers; what the package prints goes nowhere, and what it asks has no answer."""
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    return questions, answers


def _hear_warnings() -> list[str]:
    """A list that fills with what the package warns of; it says so wherever something could not be written."""
    heard: list[str] = []

    def hear(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
        if category is UserWarning:
            heard.append(" ".join(str(message).removeprefix("* ").split()))

    warnings.simplefilter("always")
    warnings.showwarning = hear
    return heard


if __name__ == "__main__":
    main()
