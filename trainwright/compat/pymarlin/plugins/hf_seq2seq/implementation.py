"""The plugin."""

from __future__ import annotations

from typing import Any

from trainwright.compat.pymarlin.plugins.base import Plugin
from trainwright.compat.pymarlin.plugins.hf_seq2seq.data_classes import DataInterfaceArguments, HfSeq2SeqData
from trainwright.compat.pymarlin.plugins.hf_seq2seq.module_classes import (
    GenerateArguments,
    HfSeq2SeqModule,
    ModelArguments,
    ModuleInterfaceArguments,
)


class HfSeq2SeqPlugin(Plugin):
    """``HfSeq2SeqPlugin().setup().train()``, with a configuration such as PyMarlin's."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__(config)
        self.data_args = self.section("data", DataInterfaceArguments)
        self.module_args = self.section(
            "module",
            ModuleInterfaceArguments,
            model_args=self.section("model", ModelArguments),
            generate_args=self.section("generate", GenerateArguments),
        )
        if (self.config.get("distill") or {}).get("enable"):
            raise ValueError("distill.enable=True: this plugin has no distillation, in PyMarlin neither.")

    def setup_datainterface(self) -> None:
        self.datainterface = HfSeq2SeqData(self.data_args)
        self.datainterface.setup_datasets()

    def setup_module(self) -> None:
        self._make_module(HfSeq2SeqModule, self.datainterface, self.module_args)
