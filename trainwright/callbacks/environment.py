"""What a run ran on: facts that make a result traceable. No secret is among them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

from trainwright.callbacks.git_facts import git_facts
from trainwright.config.secrets import masked_command, redacted_values

_PACKAGES = (
    "trainwright",
    "torch",
    "transformers",
    "datasets",
    "numpy",
    "safetensors",
    "peft",
    "sentence-transformers",
    "trl",
    "accelerate",
    "tokenizers",
)


def environment_facts(model: Any = None, loader: object = None) -> dict[str, Any]:
    """Versions, hardware, git commit, command line, and what is known of model and data."""
    facts = {
        "command": masked_command(sys.argv),
        "python": platform.python_version(),
        "platform": _platform(),
        "packages": _versions(),
        # Whose Trainer `from transformers import Trainer` gives in this process.
        "transformers_trainer": "trainwright" if _is_underneath() else "transformers",
        "git": git_facts(),
        "hardware": _hardware(),
        "model": _model_facts(model),
        "dataset": _dataset_facts(getattr(loader, "dataset", None)),
    }
    # A model's name may be an address with a password in it, a branch may be called anything.
    return redacted_values(facts)


def _platform() -> str:
    # platform.platform() says the same, and starts `uname` to find out.
    library = "".join(platform.libc_ver())
    return "-".join(
        [platform.system(), platform.release(), platform.machine(), *(["with", library] if library else [])]
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _is_underneath() -> bool:
    door = sys.modules.get("trainwright.compat.transformers_door")
    return door is not None and door.is_open()


def _hardware() -> dict[str, Any]:
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cpu": platform.machine(), "cores": os.cpu_count(), "cuda": devices}


def _model_facts(model: Any) -> dict[str, Any] | None:
    if model is None:
        return None
    config = getattr(model, "config", None)
    return {
        "class": type(model).__name__,
        "name": getattr(config, "_name_or_path", None) or None,
        "revision": getattr(config, "_commit_hash", None),
        "parameters": sum(p.numel() for p in model.parameters()) if hasattr(model, "parameters") else None,
    }


def _dataset_facts(dataset: Any) -> dict[str, Any] | None:
    if dataset is None:
        return None
    info = getattr(dataset, "info", None)
    return {
        "class": type(dataset).__name__,
        "name": getattr(info, "dataset_name", None),
        "version": str(info.version) if getattr(info, "version", None) else None,
        "fingerprint": getattr(dataset, "_fingerprint", None),
        "rows": len(dataset) if hasattr(dataset, "__len__") else None,
    }
