"""Statistics in TensorBoard's files."""

from __future__ import annotations

from typing import Any

import torch

from trainwright.compat.pymarlin.utils.writer.base import Writer, WriterInitArguments, new_folder


class Tensorboard(Writer):
    """Writes event files into a new folder ``run-N`` of ``tb_log_dir``; what earlier runs wrote stays."""

    def __init__(self, args: WriterInitArguments | None = None) -> None:
        super().__init__()
        self.args = args or WriterInitArguments()
        from torch.utils.tensorboard import SummaryWriter

        self.log_dir = new_folder(self.args.log_dir)
        self.writer = SummaryWriter(str(self.log_dir))

    def log_scalar(self, k: str, v: object, step: int) -> None:
        self.writer.add_scalar(k, v, step)

    def log_multi(self, k: str, v: dict[str, Any], step: int) -> None:
        if self.args.tb_log_multi:
            self.writer.add_scalars(k, v, step)
            return
        for name, value in v.items():
            self.writer.add_scalar(f"{k}/{name}", value, step)

    def log_model(self, flat_weights: dict[str, Any], flat_grads: dict[str, Any], step: int) -> None:
        for kind, values in (("weight", flat_weights), ("grad", flat_grads)):
            for name, numbers in values.items():
                self.log_histogram(f"{kind}s/{name}", numbers, step)
                self.writer.add_scalar(f"{kind}_norm/{name}", numbers.norm().item(), step)

    def log_args(self, args: object) -> None:
        values = args if isinstance(args, dict) else vars(args)
        for name, value in values.items():
            self.writer.add_text(f"args/{name}", str(value))

    def log_graph(self, model: Any, device: Any = None) -> None:
        sample = getattr(model, "get_sample_input", None)
        if sample is None:
            self.logger.warning("The model's graph is not logged: define get_sample_input() in the model.")
            return
        inputs = sample()
        inputs = tuple(item.to(device) for item in inputs) if isinstance(inputs, tuple) else inputs.to(device)
        self.writer.add_graph(model, inputs)

    def log_image(self, k: str, v: object, step: int, dataformats: str = "HW") -> None:
        self.writer.add_image(k, v, step, dataformats=dataformats)

    def log_pr_curve(self, k: str, preds: object, labels: object, step: int) -> None:
        self.writer.add_pr_curve(k, labels=labels, predictions=preds, global_step=step)

    def log_histogram(self, param_name: str, vals: object, step: int) -> None:
        if step % self.args.tb_log_hist_steps:
            return
        if not bool(torch.isfinite(torch.as_tensor(vals)).all()):
            self.logger.warning("The histogram of %s at step %d has numbers that are not finite.", param_name, step)
            return
        self.writer.add_histogram(param_name, vals, step)

    def log_embedding(self, tag: str, mat: object, labels: object, step: int) -> None:
        self.writer.add_embedding(mat, tag=tag, metadata=labels, global_step=step)

    def flush(self) -> None:
        self.writer.flush()

    def finish(self) -> None:
        self.writer.close()
