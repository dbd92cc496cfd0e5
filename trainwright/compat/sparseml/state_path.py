"""``model_state_path``: the folder that a model came from."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.config.refused_versions import refuse_unsafe_transformers
from trainwright.training.recipe_folder import RECIPE

logger = logging.getLogger("trainwright")

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")


@dataclass(frozen=True)
class StatePath:
    """What lies in that folder besides weights."""

    folder: Path

    @classmethod
    def of(cls, path: str | Path | None) -> StatePath | None:
        """None where there is nothing to read: no path, or the name of a model elsewhere."""
        if path is None or str(path) == "":
            return None
        if str(path).startswith("zoo:"):
            raise ValueError(
                f"model_state_path={str(path)!r}: the SparseZoo is gone: pass the folder of a saved model, or None."
            )
        folder = Path(path)
        if not folder.is_dir():
            logger.warning("model_state_path=%s is not a folder: neither recipe nor tokenizer is read from it.", path)
            return None
        return cls(folder)

    @property
    def has_recipe(self) -> bool:
        """Whether a recipe made the model."""
        return (self.folder / RECIPE).is_file()

    def tokenizer(self) -> Any:
        """The tokenizer that was saved there, if one was."""
        if not any((self.folder / name).is_file() for name in _TOKENIZERS):
            return None
        from transformers import AutoTokenizer

        refuse_unsafe_transformers()
        return AutoTokenizer.from_pretrained(self.folder)

    def copy_config(self, folder: Path) -> None:
        """Let ``folder`` have the configuration too."""
        if (self.folder / "config.json").is_file() and self.folder.resolve() != folder.resolve():
            shutil.copy2(self.folder / "config.json", folder / "config.json")
