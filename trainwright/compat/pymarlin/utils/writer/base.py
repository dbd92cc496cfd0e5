"""Where statistics go: the base class of writers."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class WriterInitArguments:
    """Settings of the writers that come with the door."""

    #: Folder of TensorBoard's files; each run gets a folder of its own in it, and nothing there is ever deleted.
    tb_log_dir: str = "logs"
    #: Environment variable with the folder that ``tb_log_dir`` is in.
    tb_logpath_parent_env: str | None = None
    #: Draw the values of ``update_multi`` in one chart.
    tb_log_multi: bool = False
    #: Steps between histograms of weights and gradients.
    tb_log_hist_steps: int = 20000
    #: "DEBUG" also prints the norms of weights and gradients.
    model_log_level: str = "INFO"

    @property
    def log_dir(self) -> Path:
        """``tb_log_dir``, in the folder that the environment names."""
        return Path(os.environ.get(self.tb_logpath_parent_env or "", "")) / self.tb_log_dir


def new_folder(parent: Path) -> Path:
    """A folder ``run-N`` that nobody has used; making it is what claims it."""
    number = 1
    while True:
        folder = parent / f"run-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


class Writer:
    """Override what you can show; the rest goes nowhere."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self.logger = logger or logging.getLogger("trainwright.pymarlin")

    def log_scalar(self, k: str, v: object, step: int) -> None: ...
    def log_multi(self, k: str, v: dict[str, Any], step: int) -> None: ...
    def log_model(self, flat_weights: dict[str, Any], flat_grads: dict[str, Any], step: int) -> None: ...
    def log_args(self, args: object) -> None: ...
    def log_graph(self, model: Any, device: Any = None) -> None: ...
    def log_image(self, k: str, v: object, step: int, dataformats: str = "HW") -> None: ...
    def log_pr_curve(self, k: str, preds: object, labels: object, step: int) -> None: ...
    def log_histogram(self, param_name: str, vals: object, step: int) -> None: ...
    def log_embedding(self, tag: str, mat: object, labels: object, step: int) -> None: ...
    def flush(self) -> None: ...
    def finish(self) -> None: ...

    def log_multi_line(self, string: str) -> None:
        """Each line as a message of its own."""
        for line in string.split("\n"):
            self.logger.info(line)
