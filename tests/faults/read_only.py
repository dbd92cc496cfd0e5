"""Trains with a tokenizer that writes files and folders which are read-only, as somebody who is not root.

python -m tests.faults.read_only FIRST FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.faults import runner
from trainwright import Trainer


class FromACache:
    """Copies files as they lie in a cache: read-only, in a read-only folder."""

    def save_pretrained(self, folder: str) -> None:
        vocabulary = Path(folder, "vocabulary")
        vocabulary.mkdir()
        (vocabulary / "words.txt").write_text("words")
        (vocabulary / "words.txt").chmod(0o444)
        vocabulary.chmod(0o555)


class WritesEachTime(Trainer):
    """Asks the tokenizer at every save, not only at the first."""

    def _save_checkpoint(self, model: object, trial: object = None) -> None:  # type: ignore[override]
        self._present_run().capture._processor_files = None
        super()._save_checkpoint(model, trial)  # type: ignore[arg-type]


def train(folder: Path) -> None:
    args = runner.build(folder, max_steps=3, save_steps=1, save_total_limit=2).args
    WritesEachTime(runner.Net(), args, train_dataset=runner.rows(), processing_class=FromACache()).train()


if __name__ == "__main__":
    # Once as whoever started this: what is imported on the way may be readable for them alone.
    train(Path(sys.argv[1]))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    train(Path(sys.argv[2]))
