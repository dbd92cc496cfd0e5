"""What a run ran on: facts that make a result traceable. No secret is among them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from typing import Any

_PACKAGES = (
    "trainwright",
    "torch",
    "transformers",
    "datasets",
    "numpy",
    "safetensors",
    "peft",
    "accelerate",
    "tokenizers",
)
_SECRET_NAME = re.compile(r"token|secret|password|passwd|api[-_]?key|credential|auth", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|glpat-[A-Za-z0-9_-]{8,}|xox[a-z]-[A-Za-z0-9-]{8,}|AKIA[A-Z0-9]{12,})"
)
_NUMBER = re.compile(r"-\d+(\.\d+)?([eE]-?\d+)?")
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")


def environment_facts(model: Any = None, loader: Any = None) -> dict[str, Any]:
    """Versions, hardware, git commit, command line, and what is known of model and data."""
    return {
        "command": masked_command(sys.argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(),
        "git": git_facts(),
        "hardware": _hardware(),
        "model": _model_facts(model),
        "dataset": _dataset_facts(getattr(loader, "dataset", None)),
    }


def masked_command(argv: list[str]) -> list[str]:
    """The command line with values of secret-looking options, and secret-looking values, replaced by ``***``."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-") and not _NUMBER.fullmatch(word)
        if hide_next and not word.startswith("--"):
            # The value of the option before it, even if it begins with a dash.
            shown.append("***")
            hide_next = False
            continue
        shown.append(_masked_word(word))
        hide_next = is_option and not equals and bool(_SECRET_NAME.search(name))
    return shown


def _masked_word(word: str) -> str:
    """``name=value`` pairs, also nested ones, lose the value behind the first secret-looking name."""
    parts = word.split("=")
    for index, part in enumerate(parts[:-1]):
        if _SECRET_NAME.search(part):
            return "=".join([*parts[: index + 1], "***"])
    return _URL_PASSWORD.sub("***", _SECRET_VALUE.sub("***", word))


def git_facts() -> dict[str, Any] | None:
    """Commit, branch and whether files differ from it; None outside a repository or without git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {
        "commit": commit,
        "branch": _git("rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _hardware() -> dict[str, Any]:
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "cuda": devices}


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
