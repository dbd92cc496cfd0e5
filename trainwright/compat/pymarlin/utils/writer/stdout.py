"""Statistics on the terminal."""

from __future__ import annotations

from typing import Any

from trainwright.compat.pymarlin.utils.writer.base import Writer, WriterInitArguments


class Stdout(Writer):
    """Prints one line for each number."""

    def __init__(self, args: WriterInitArguments | None = None) -> None:
        super().__init__()
        self.args = args or WriterInitArguments()

    def log_scalar(self, k: str, v: object, step: int) -> None:
        print(f"step = {step}, {k} : {v}")

    def log_multi(self, k: str, v: dict[str, Any], step: int) -> None:
        print(f"step = {step}, {k} : {v}")

    def log_model(self, flat_weights: dict[str, Any], flat_grads: dict[str, Any], step: int) -> None:
        if self.args.model_log_level != "DEBUG":
            return
        for name, weights in flat_weights.items():
            gradient = flat_grads[name].norm().item() if name in flat_grads else None
            print(f"step = {step}, {name} : weight_norm = {weights.norm().item()}, grad_norm = {gradient}")

    def log_graph(self, model: Any, device: Any = None) -> None:
        print(model)

    def log_args(self, args: object) -> None:
        print(args)
