"""Evaluator: loss and metrics of a module without a Trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainwright.compat.accmt.hyperparameters import HyperParameters
from trainwright.compat.accmt.metrics import Metric
from trainwright.compat.accmt.modules import AcceleratorModule
from trainwright.compat.accmt.trainer import Trainer


class Evaluator:
    """Measures a module over a data set, by its ``test_step``, ``validation_step`` or another method.

    Args:
        metrics: One or several; their names are the keys of what the step returns.
        compile: Compile the model.
        batch_size: Samples that are measured at once.
        num_workers: Processes that load data.
        pin_memory: For faster transfer to a GPU.
        collate_fn: Makes a batch of samples; a module's own comes before it.
        device_placement, prepare_batch, enable_prepare_logging: Batches are placed where the model is in any case.
    """

    def __init__(
        self,
        metrics: Metric | list[Metric] | None = None,
        compile: bool = False,
        batch_size: int = 1,
        device_placement: bool = True,
        num_workers: int | None = None,
        pin_memory: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        prepare_batch: bool = True,
        enable_prepare_logging: bool = False,
    ) -> None:
        self.metrics, self.batch_size, self.compile = metrics, batch_size, compile
        self.num_workers, self.pin_memory, self.collate_fn = num_workers or 0, pin_memory, collate_fn
        self.device_placement = device_placement

    def evaluate(
        self,
        module: AcceleratorModule,
        dataset: Any,
        eval_logic_fn_name: str = "test_step",
        results_output: str | Path | None = "results.json",
        verbose: bool = True,
        module_hooks: bool = True,
    ) -> dict[str, float]:
        """Measure ``module`` over ``dataset``; results go to ``results_output``, and are printed."""
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                HyperParameters(batch_size=self.batch_size),
                model_path=f"{folder}/model",
                metrics=self.metrics,
                compile=self.compile,
                collate_fn=self.collate_fn,
                dataloader_num_workers=self.num_workers,
                dataloader_pin_memory=self.pin_memory,
                val_loss_metric_name="loss",
            )
            return trainer.evaluate(
                module,
                dataset,
                eval_logic_fn_name,
                results_output,
                verbose,
                module_hooks,
                device_placement=self.device_placement,
            )

    def evaluate_on_test(self, module: AcceleratorModule, dataset: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        """:meth:`evaluate` by ``test_step``."""
        return self.evaluate(module, dataset, "test_step", *args, **kwargs)

    def evaluate_on_validation(
        self, module: AcceleratorModule, dataset: Any, *args: Any, **kwargs: Any
    ) -> dict[str, float]:
        """:meth:`evaluate` by ``validation_step``."""
        return self.evaluate(module, dataset, "validation_step", *args, **kwargs)
