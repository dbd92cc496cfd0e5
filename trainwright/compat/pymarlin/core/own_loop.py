"""Epoch by epoch in PyMarlin's order, for a backend whose loop over batches is the user's own code."""

from __future__ import annotations

import logging
from typing import Any

from trainwright.compat.pymarlin.core.adapter import Progress, Supply
from trainwright.compat.pymarlin.core.module_interface import ModuleInterface
from trainwright.compat.pymarlin.core.trainer_backend import TrainerBackend
from trainwright.compat.pymarlin.utils.stats.basic_stats import BasicStats
from trainwright.data.replay import set_epoch

logger = logging.getLogger("trainwright")


class OwnLoop:
    """Calls ``train_dl`` and ``validate_dl``; what happens inside an epoch is theirs, and is not saved or resumed."""

    def __init__(
        self, module: ModuleInterface, backend: TrainerBackend, supply: Supply, progress: Progress, stats: BasicStats
    ) -> None:
        self._module, self._backend, self._supply = module, backend, supply
        self._progress, self._stats = progress, stats

    def run_epoch(self) -> None:
        """The next epoch, its validation, and the callbacks around them."""
        epoch = self._progress.last_epoch + 1
        logger.info("Training epoch %d.", epoch)
        self._stats.update("epoch", epoch, frequent=True)
        self._module.on_begin_train_epoch(self._backend.get_global_steps_completed(), epoch)
        self._module.train()
        loader = self._supply.train_loader()
        set_epoch(loader, epoch)
        outputs = self._backend.train_dl(loader, self._module)
        self.validate()
        self._module.on_end_train_epoch(self._backend.get_global_steps_completed(), *(outputs or []))
        self._stats.log_long_stats(self._backend.get_global_steps_completed())
        self._progress.last_epoch = epoch

    def validate(self) -> dict[str, Any]:
        """Outputs of every validation loader by its name."""
        self._module.eval()
        results: dict[str, Any] = {}
        for key, loader in self._supply.val_loaders().items():
            results[key] = outputs = self._backend.validate_dl(loader)
            self._module.on_end_val_epoch(self._backend.get_global_steps_completed(), *(outputs or []), key=key)
        self._stats.log_long_stats(self._backend.get_global_steps_completed())
        return results
