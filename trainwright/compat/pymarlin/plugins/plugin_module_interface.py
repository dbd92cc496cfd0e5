"""What the modules of all plugins share: a model and a tokenizer of transformers, Adam, and one cycle of rates."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from trainwright.compat.pymarlin.core.data_interface import DataInterface
from trainwright.compat.pymarlin.core.module_interface import ModuleInterface
from trainwright.compat.pymarlin.utils.stats import global_stats


class PluginModuleInterface(ModuleInterface):
    """Loads model and tokenizer as ``args.model_args`` say, and trains with the loss that the model computes."""

    args: Any
    model: nn.Module
    tokenizer: Any
    model_config: Any
    #: Where a rate of ``max_lr`` is reached, and how far from it the cycle begins and ends.
    _cycle: dict[str, Any]
    _data: Any = None

    def __init__(self, args: Any, data: DataInterface) -> None:
        super().__init__()
        self.args, self.data = args, data
        warmup = getattr(args, "warmup_prop", None)
        ends = {"div_factor": 1e7, "final_div_factor": 1e10}
        self._cycle = {} if warmup is None else {"pct_start": warmup, **ends}

    @property
    def data(self) -> Any:
        """The DataInterface; it must have something in it."""
        return self._data

    @data.setter
    def data(self, datainterface: DataInterface) -> None:
        if not len(datainterface.get_train_dataset()) and not len(datainterface.get_val_dataset()):
            raise ValueError("There is no data yet: call setup_datainterface() before setup_module().")
        self._data = datainterface

    # ---- model and tokenizer

    def auto_setup(self, automodel_class: Any) -> None:
        """Tokenizer, configuration and model."""
        self.setup_tokenizer()
        self.setup_model_config()
        self.setup_model(automodel_class)

    def setup_tokenizer(self) -> None:
        """``tokenizer_path``, or that of ``hf_model``."""
        from transformers import AutoTokenizer

        names = self.args.model_args
        self.tokenizer = AutoTokenizer.from_pretrained(names.tokenizer_path or names.hf_model)

    def setup_model_config(self) -> None:
        """``model_config_path`` with ``model_config_file``, or that of ``hf_model``."""
        from transformers import AutoConfig

        names = self.args.model_args
        path = names.hf_model
        if names.model_config_path is not None:
            path = os.path.join(names.model_config_path, names.model_config_file)
        self.model_config = AutoConfig.from_pretrained(path)
        if hasattr(self.data, "get_labels"):
            self.model_config.num_labels = len(self.data.get_labels())

    def setup_model(self, automodel_class: Any) -> None:
        """The weights in ``model_path``, or those of ``hf_model``."""
        names = self.args.model_args
        path = names.hf_model
        if names.model_path is not None and names.model_file is not None:
            path = _folder_with_weights(names.model_path, names.model_file)
        self.model = automodel_class.from_pretrained(path, config=self.model_config)

    # ---- data, optimizer, step

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> DataLoader[Any]:
        return self._loader(self.data.get_train_dataset(), sampler, batch_size)

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> DataLoader[Any]:
        return self._loader(self.data.get_val_dataset(), sampler, batch_size)

    def _loader(self, rows: Any, sampler: Any, batch_size: int) -> DataLoader[Any]:
        return DataLoader(rows, batch_size=batch_size, collate_fn=self.collate_fun, sampler=sampler(rows))

    def collate_fun(self, batch: list[Any]) -> Any:
        """Rows of the dataset as what the model takes."""
        raise NotImplementedError(f"{type(self).__name__} must define collate_fun(batch).")

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        self.optimizer = torch.optim.Adam(self.model.parameters(), self.args.max_lr)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            max_lr=self.args.max_lr,
            steps_per_epoch=estimated_global_steps_per_epoch,
            epochs=epochs,
            anneal_strategy="linear",
            **self._cycle,
        )
        return [self.optimizer], [self.scheduler]

    def train_step(self, global_step: int, batch: Any, device: Any) -> Any:
        return self.model(**batch.to(device)).loss

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        batch = batch.to(device)
        outputs = self.model(**batch)
        return outputs.logits if outputs.loss is None else (outputs.loss, outputs.logits, batch["labels"])

    def on_end_train_step(self, global_step: int, *outputs: Any) -> None:
        global_stats.update("lr", self.optimizer.param_groups[0]["lr"], frequent=True)


def _folder_with_weights(folder: str, file: str) -> str:
    """transformers reads a folder, and knows its file by name."""
    if file not in ("pytorch_model.bin", "model.safetensors"):
        raise ValueError(
            f"model_file={file!r}: transformers loads a folder, so call the file in {folder} pytorch_model.bin or "
            "model.safetensors."
        )
    return folder
