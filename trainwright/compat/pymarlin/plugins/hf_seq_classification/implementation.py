"""The plugin."""

from __future__ import annotations

from typing import Any

from trainwright.compat.pymarlin.plugins.base import Plugin
from trainwright.compat.pymarlin.plugins.hf_seq_classification.data_classes import (
    DataArguments,
    HfSeqClassificationDataInterface,
)
from trainwright.compat.pymarlin.plugins.hf_seq_classification.module_classes import (
    HfSeqClassificationModule,
    ModelArguments,
    ModuleInterfaceArguments,
)
from trainwright.compat.pymarlin.plugins.hfdistill_utils import DistillationArguments


class HfSeqClassificationPlugin(Plugin):
    """``HfSeqClassificationPlugin().setup().train()``, with a configuration such as PyMarlin's."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__(config)
        self.data_args = self.section("data", DataArguments)
        model = self.section("model", ModelArguments)
        self.module_args = self.section("module", ModuleInterfaceArguments, model_args=model)
        self.distill_args = self.section("distill", DistillationArguments)

    def setup_datainterface(self) -> None:
        self.datainterface = HfSeqClassificationDataInterface(self.data_args)
        self.datainterface.setup_datasets()

    def setup_module(self) -> None:
        self._make_module(HfSeqClassificationModule, self.module_args, self.datainterface)
