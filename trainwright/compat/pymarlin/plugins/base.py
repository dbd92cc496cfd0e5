"""What all plugins do: read the configuration, then set up data, module and trainer, one after the other."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trainwright.compat.pymarlin.core.data_interface import DataInterface, DataProcessor
from trainwright.compat.pymarlin.core.module_interface import ModuleInterface
from trainwright.compat.pymarlin.core.trainer import Trainer, TrainerArguments
from trainwright.compat.pymarlin.plugins.hfdistill_utils import build_distill_module
from trainwright.compat.pymarlin.utils.checkpointer.checkpoint_utils import DefaultCheckpointerArguments
from trainwright.compat.pymarlin.utils.config_parser.custom_arg_parser import CustomArgParser
from trainwright.compat.pymarlin.utils.stats.basic_stats import StatInitArguments
from trainwright.compat.pymarlin.utils.writer.base import WriterInitArguments


class Plugin:
    """Derive a task of your own from it with ``setup_datainterface`` and ``setup_module``.

    Args:
        config: Sections ``trainer``, ``stats``, ``wrts``, ``ckpt`` and those of the task; by default what
            ``--config_path`` on the command line names, else ``config.yaml``.
    """

    datainterface: DataInterface
    dataprocessor: DataProcessor
    moduleinterface: ModuleInterface
    trainer: Trainer
    #: Settings of a distillation, in a plugin that can do one.
    distill_args: Any = None

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config = CustomArgParser().parse() if config is None else config
        self.trainer_args = self.section(
            "trainer",
            TrainerArguments,
            stats_args=self.section("stats", StatInitArguments),
            writer_args=self.section("wrts", WriterInitArguments),
            checkpointer_args=self.section("ckpt", DefaultCheckpointerArguments),
        )

    def section(self, name: str, kind: type[Any], **more: Any) -> Any:
        """A section of the configuration as its dataclass."""
        values = self.config.get(name) or {}
        known = [field.name for field in fields(kind)]
        unknown = [key for key in values if key not in known]
        if unknown:
            raise ValueError(
                f"The section {name!r} of the configuration has {', '.join(unknown)}; there are: {', '.join(known)}."
            )
        return kind(**values, **more)

    def setup_datainterface(self) -> Any:
        """Read the data; sets ``datainterface``."""
        raise NotImplementedError(f"{type(self).__name__} must define setup_datainterface().")

    def setup_module(self) -> Any:
        """Make model and tokenizer; sets ``moduleinterface``."""
        raise NotImplementedError(f"{type(self).__name__} must define setup_module().")

    def setup_trainer(self) -> Trainer:
        """Make the Trainer; sets ``trainer``, and returns it."""
        self.trainer = Trainer(module=self.moduleinterface, args=self.trainer_args)
        return self.trainer

    def setup(self) -> Trainer:
        """Everything, from the data to the Trainer."""
        self.setup_datainterface()
        self.setup_module()
        return self.setup_trainer()

    def _make_module(self, kind: type[Any], *args: Any) -> None:
        """With a teacher, where the configuration asks for one."""
        if self.distill_args is not None and self.distill_args.enable:
            self.moduleinterface = build_distill_module(kind)(self.distill_args, *args)
        else:
            self.moduleinterface = kind(*args)
