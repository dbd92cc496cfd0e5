"""The plugin."""

from __future__ import annotations

from typing import Any

from trainwright.compat.pymarlin.plugins.base import Plugin
from trainwright.compat.pymarlin.plugins.hf_ner.data_classes import DataArguments, NERDataInterface
from trainwright.compat.pymarlin.plugins.hf_ner.module_classes import (
    ModelArguments,
    ModuleInterfaceArguments,
    NERModule,
)
from trainwright.compat.pymarlin.plugins.hfdistill_utils import DistillationArguments


class HfNERPlugin(Plugin):
    """Data and module are set up at once, as in PyMarlin: ``HfNERPlugin().setup_trainer().train()``."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__(config)
        self.data_args = self.section("data", DataArguments)
        model = self.section("model", ModelArguments)
        self.module_args = self.section("module", ModuleInterfaceArguments, model_args=model)
        self.distill_args = self.section("distill", DistillationArguments)
        self.setup_datainterface()
        self.setup_module()

    def setup_datainterface(self) -> None:
        self.datainterface = NERDataInterface(self.data_args)
        self.datainterface.setup_datasets()

    def setup_module(self) -> None:
        self._make_module(NERModule, self.module_args, self.datainterface)
