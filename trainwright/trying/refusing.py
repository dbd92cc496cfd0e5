"""In processes that a tried script starts: what trains there is not observed, so it must not train at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

from trainwright.compat.redirect import Redirection

#: Names the folder of a run, for processes that it starts.
FOLDER = "TRAINWRIGHT_TRY_FOLDER"
#: A file there says that one of them wanted to train.
MARK = "trains-elsewhere"
#: Python finds sitecustomize.py there.
STARTUP = Path(__file__).parent / "children"

REFUSED = Redirection(
    "transformers",
    {
        "transformers.trainer": {"Trainer": f"{__name__}:Trainer"},
        "transformers.trainer_seq2seq": {"Seq2SeqTrainer": f"{__name__}:Trainer"},
    },
)


class Trainer:
    """Stands for transformers' Trainer where a try cannot follow."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse_to_train()


def refuse_to_train() -> NoReturn:
    """Leave word that a process wanted to train which the script has started."""
    if folder := os.environ.get(FOLDER):
        Path(folder, MARK).touch()
    raise RuntimeError("trainwright try sees one process: a training in a process that the script starts is not run.")


def refuse_in_children(folder: str) -> None:
    """Let processes that this one starts refuse to train."""
    os.environ[FOLDER] = folder
    os.environ["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])])
