"""Data that needs no download: handwritten digits, and English prose in characters."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_DIGITS = Path(__file__).with_name("library") / "digits.npz"
#: Printable ASCII and the line break; every other character becomes a space.
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))


def digits() -> tuple[Tensor, Tensor]:
    """1,797 grey images, n x 1 x 8 x 8 in 0..1, and their digits; ``library/digits.md`` says where they come from."""
    with np.load(_DIGITS, allow_pickle=False) as stored:
        pixels, labels = stored["pixels"], stored["labels"]
    return torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels, dtype=torch.long)


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
