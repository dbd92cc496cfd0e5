"""Optional packages: which extra of trainwright brings each, and how to install it, in one line."""

from __future__ import annotations

import importlib.util

from trainwright.config.errors import MissingPackage

#: Package, as it is imported -> the extra that brings it.
EXTRAS = {
    "transformers": "hf",
    "datasets": "hf",
    "tensorboard": "tensorboard",
    "torchmetrics": "metrics",
    "peft": "lora",
    "schedulefree": "schedulefree",
    "torchao": "recipes",
    "compressed_tensors": "recipes",
    "onnx": "recipes",
    "onnxscript": "recipes",
    "onnxruntime": "recipes",
    "jax": "jax",
    "torchax": "jax",
    "mindspore": "mindspore",
    "deepspeed": "deepspeed",
    "ray": "ray",
    "optuna": "search",
    "wandb": "wandb",
    "comet_ml": "comet",
    "aim": "aim",
    "mlflow": "mlflow",
    "clearml": "clearml",
    "dvclive": "dvclive",
    "trackio": "trackio",
    "psutil": "monitor",
    "soundfile": "media",
    "scipy": "media",
}
#: Packages that no extra brings, by the name that pip knows them by.
OTHERS = {"PIL": "pillow", "sklearn": "scikit-learn"}


def pip_name(package: str) -> str:
    """The name that pip knows an imported package by."""
    return OTHERS.get(package, package)


def install(package: str) -> str:
    """The command that installs an optional package.

    >>> install("datasets"), install("PIL")
    ("pip install 'trainwright[hf]'", 'pip install pillow')
    """
    if package in EXTRAS:
        return f"pip install 'trainwright[{EXTRAS[package]}]'"
    return f"pip install {pip_name(package)}"


def is_installed(package: str) -> bool:
    """Return True if ``package`` can be imported; it is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def missing_package(error: ImportError) -> str | None:
    """Which optional package is missing and how to install it; None where an import failed for another reason.

    >>> missing_package(ModuleNotFoundError("No module named 'torchlib'", name="torchlib")) is None
    True
    """
    if isinstance(error, MissingPackage):
        return str(error)
    package = (error.name or "").split(".")[0]
    if package not in {*EXTRAS, *OTHERS} or is_installed(package):
        return None
    return f"This needs the package {pip_name(package)}: {install(package)}"
