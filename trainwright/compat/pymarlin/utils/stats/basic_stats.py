"""Numbers, images and curves on their way to the writers."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trainwright.compat.pymarlin.utils.writer.base import Writer
from trainwright.config.patterns import Pattern
from trainwright.config.warnings import warn


@dataclass
class StatInitArguments:
    """When statistics are written."""

    #: Steps between two writings of what ``update(..., frequent=True)`` collects.
    log_steps: int = 1
    #: Also write how busy processor, memory and device are.
    update_system_stats: bool = False
    #: Steps between two looks at weights and gradients.
    log_model_steps: int = 1000
    #: Parameters whose names match this regular expression are left out of it.
    exclude_list: str | None = r"bias|LayerNorm|layer\.[3-9]|layer\.1(?!1)|layer\.2(?!3)"


class BasicStats:
    """Collects until the next step (``frequent=True``) or the end of the epoch, then tells every writer.

    >>> stats = BasicStats(StatInitArguments())
    >>> stats.update("accuracy", 0.9)
    >>> stats.scalars_long
    {'accuracy': 0.9}
    """

    def __init__(self, args: StatInitArguments, writers: Iterable[Writer] | None = None) -> None:
        self.args = args
        self.writers = list(writers or ())
        #: Whose memory ``update_system_stats`` reports.
        self.device = torch.device("cpu")
        self._said_no_psutil = False
        self.reset()

    def rebuild(self, args: StatInitArguments | None, writers: Iterable[Writer]) -> None:
        """Other settings (None: the ordinary ones), other writers; what was collected stays."""
        self.args, self.writers = args or StatInitArguments(), list(writers)

    def reset(self) -> None:
        """Forget everything collected."""
        self.reset_short()
        self.reset_long()

    def reset_short(self) -> None:
        self.scalars_short: dict[str, Any] = {}
        self.multi_short: dict[str, dict[str, Any]] = {}

    def reset_long(self) -> None:
        self.scalars_long: dict[str, Any] = {}
        self.multi_long: dict[str, dict[str, Any]] = {}
        self.images: dict[str, tuple[Any, str]] = {}
        self.pr: dict[str, tuple[Any, Any]] = {}
        self.histogram: dict[str, Any] = {}
        self.embedding: dict[str, tuple[Any, Any]] = {}

    # ---- collecting

    def update(self, k: str, v: Any, frequent: bool = False) -> None:
        """A number, for the next step or for the end of the epoch."""
        (self.scalars_short if frequent else self.scalars_long)[k] = v

    def update_multi(self, k: str, v: dict[str, Any], frequent: bool = False) -> None:
        """Several numbers that belong together."""
        (self.multi_short if frequent else self.multi_long)[k] = v

    def update_image(self, k: str, v: object, dataformats: str = "HW") -> None:
        self.images[k] = (v, dataformats)

    def update_matplotlib_figure(self, fig: Any, tag: str) -> None:
        """A figure as an image."""
        try:
            from PIL import Image
        except ImportError:
            warn("update_matplotlib_figure needs pillow (pip install pillow): the figure is left out.")
            return
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png")
        self.update_image(tag, np.array(Image.open(buffer)), "HWC")

    def update_pr(self, k: str, preds: object, labels: object) -> None:
        """Probabilities and true labels of a yes-or-no question, for a precision-recall curve."""
        self.pr[k] = (preds, labels)

    def update_histogram(self, k: str, vals: Any, extend: bool = False) -> None:
        """Numbers for a histogram, in place of those collected or added to them."""
        self.histogram[k] = torch.cat((self.histogram[k], vals)) if extend and k in self.histogram else vals

    def update_embedding(self, k: str, embs: object, labels: object) -> None:
        self.embedding[k] = (embs, labels)

    def update_system_stats(self) -> None:
        """How busy the machine is since the last call; waits for nothing."""
        try:
            import psutil
        except ImportError:
            if not self._said_no_psutil:
                self._said_no_psutil = True
                warn("update_system_stats needs psutil (pip install psutil): there are no system statistics.")
            return
        memory = psutil.virtual_memory()
        self.update("system/RAM/memory_used_pct", memory.percent, frequent=True)
        own = psutil.Process().memory_info().rss
        self.update("system/RAM/memory_elr_pct", 100 * own / memory.total, frequent=True)
        self.update("system/CPU/pct", psutil.cpu_percent(interval=None), frequent=True)
        if self.device.type == "cuda":
            used = torch.cuda.memory_allocated(self.device)
            total = torch.cuda.get_device_properties(self.device).total_memory
            self.update(f"system/GPU{self.device.index or 0}/memory_used_pct", 100 * used / total, frequent=True)

    # ---- writing

    def log_stats(self, step: int, force: bool = False) -> None:
        """Write what was collected for this step, every ``log_steps`` steps."""
        if step % self.args.log_steps and not force:
            return
        if self.args.update_system_stats:
            self.update_system_stats()
        for writer in self.writers:
            for name, value in self.scalars_short.items():
                writer.log_scalar(name, value, step)
            for name, values in self.multi_short.items():
                writer.log_multi(name, values, step)
        self.reset_short()

    def log_long_stats(self, step: int) -> None:
        """Write what was collected for the epoch."""
        for writer in self.writers:
            for name, value in self.scalars_long.items():
                writer.log_scalar(name, value, step)
            for name, values in self.multi_long.items():
                writer.log_multi(name, values, step)
            for name, (image, layout) in self.images.items():
                writer.log_image(name, image, step, dataformats=layout)
            for name, (predictions, labels) in self.pr.items():
                writer.log_pr_curve(name, preds=predictions, labels=labels, step=step)
            for name, values in self.histogram.items():
                writer.log_histogram(name, values, step)
            for name, (points, labels) in self.embedding.items():
                writer.log_embedding(tag=name, mat=points, labels=labels, step=step)
            writer.flush()
        self.reset_long()

    def log_args(self, args: object) -> None:
        for writer in self.writers:
            writer.log_args(args)

    def log_model(self, step: int, model: nn.Module, force: bool = False, grad_scale: float = 1) -> None:
        """Weights and gradients, every ``log_model_steps`` steps."""
        if step % self.args.log_model_steps and not force:
            return
        excluded = None if self.args.exclude_list is None else Pattern(self.args.exclude_list)
        shown = {n: p for n, p in model.named_parameters() if excluded is None or not excluded.search(n)}
        weights = {name: parameter.detach().reshape(-1) for name, parameter in shown.items()}
        gradients = {n: p.grad.detach().reshape(-1) / grad_scale for n, p in shown.items() if p.grad is not None}
        for writer in self.writers:
            writer.log_model(weights, gradients, step)

    def log_graph(self, model: Any, device: Any) -> None:
        for writer in self.writers:
            writer.log_graph(model, device=device)

    def finish(self) -> None:
        """Close the writers."""
        for writer in self.writers:
            writer.finish()
