"""Data that needs no download: handwritten digits, and English prose in characters."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

#: Printable ASCII and the line break; every other character becomes a space.
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 grey images, n x 1 x 8 x 8 in 0..1, and their digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError("The digits come with scikit-learn: pip install 'trainwright[demo]'") from error
    bundle: Any = load_digits()
    pixels = torch.tensor(bundle.images, dtype=torch.float32).unsqueeze(1) / 16
    return pixels, torch.tensor(bundle.target, dtype=torch.long)


def documentation() -> str:
    """English prose that comes with Python: the help topics, or docstrings where a distribution leaves those out."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        import argparse
        import inspect
        import logging
        import subprocess

        return "\n".join(inspect.getsource(module) for module in (argparse, inspect, logging, subprocess))
    text = "\n".join(topics[name] for name in sorted(topics))
    # Indentation and underlines would be the easiest part to learn, and the dullest to read.
    return re.sub(r"[*=-]{4,}|(?<=\s)\s+", "", text)


def encode(text: str, alphabet: str = ALPHABET) -> Tensor:
    """Character numbers; what the alphabet lacks becomes a space, or its first character."""
    table = {character: index for index, character in enumerate(alphabet)}
    other = table.get(" ", 0)
    return torch.tensor([table.get(character, other) for character in text])
