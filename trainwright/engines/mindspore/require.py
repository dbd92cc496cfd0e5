"""Whether MindSpore can be used here, and what to install if not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys


def require_mindspore() -> None:
    """Raise, naming the fix, unless MindSpore is installed beside a Python and a numpy it works with."""
    fix = "pip install 'trainwright[mindspore]' (Python 3.10 to 3.12, numpy < 2)"
    if sys.version_info >= (3, 13):
        raise ValueError(f"engine='mindspore': MindSpore has no packages for Python {sys.version.split()[0]}: {fix}.")
    if importlib.util.find_spec("mindspore") is None:
        raise ValueError(f"engine='mindspore' needs MindSpore, which is not installed: {fix}.")
    numpy = importlib.metadata.version("numpy")
    if int(numpy.split(".")[0]) >= 2:
        raise ValueError(f"engine='mindspore': MindSpore does not work with numpy {numpy}: pip install 'numpy<2'.")
