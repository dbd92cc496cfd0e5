"""Where torch's global CPU generator stands, read from its memory: whether anybody drew from it, in 0.1 microseconds.

``get_state()`` makes a tensor of 5 kB, and two of them around every batch push what the step needs out of the
processor's cache: a tiny step takes 1.05 times as long. The generator is a Mersenne twister that lies in memory in a
known form, like Python's and numpy's (``randomness/global_generators.py``). Whether the form is the known one is tried
out at import, on a generator made for that; where it is not, nothing is read here and states are compared whole, with
the same results.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch

_WORDS = 624
#: struct { uint64 seed; int32 left; bool seeded; uint32 next; uint32 state[624]; }, then two cached normal numbers,
#: each with whether there is one.
_BEFORE_WORDS, _FEW_WORDS, _CACHED = 20, 16, 28
#: Where in the object the words are looked for: behind its reference counts, its lock and its device.
_LARGEST_OFFSET = 256


def _address(generator: Any) -> int:
    return int(generator._cdata)


def _words(generator: torch.Generator) -> bytes:
    """The words as ``get_state()`` gives them: each in eight bytes, behind seed, position and position."""
    state = generator.get_state().numpy().tobytes()
    return struct.pack(f"={_WORDS}I", *struct.unpack_from(f"={_WORDS}Q", state, 24))


def _offset_of_words(generator: torch.Generator) -> int | None:
    words = _words(generator)
    head = ctypes.string_at(_address(generator), _LARGEST_OFFSET + _FEW_WORDS)
    offset = head.find(words[:_FEW_WORDS])
    if offset < _BEFORE_WORDS or ctypes.string_at(_address(generator) + offset, len(words)) != words:
        return None
    return offset


def _reader(generator: torch.Generator, offset: int) -> Callable[[], bytes]:
    """Reads what tells: seed, position, the first words and the cached numbers. As for Python's generator, a draw moves
    the position, and by the time it is back where it was all words are new."""
    start = _address(generator) + offset
    before = (ctypes.c_char * (_BEFORE_WORDS + _FEW_WORDS)).from_address(start - _BEFORE_WORDS)
    behind = (ctypes.c_char * _CACHED).from_address(start + 4 * _WORDS)
    return lambda: before.raw + behind.raw


def _tells(generator: torch.Generator, offset: int) -> bool:
    """Whether what is read changes when the state does, and only then, in every kind of draw."""
    read = _reader(generator, offset)
    kept = generator.get_state()
    trials: list[Callable[[], object]] = [
        lambda: None,
        lambda: torch.rand(1, generator=generator),
        lambda: torch.rand(700, generator=generator),
        lambda: torch.randint(9, (1,), generator=generator),
        # One of two normal numbers is kept for the next draw, which then moves nothing else.
        *[lambda kind=kind: torch.randn(1, dtype=kind, generator=generator) for kind in _KINDS for _ in range(3)],
        lambda: torch.randperm(5, generator=generator),
        lambda: None,
        lambda: generator.manual_seed(5),
        lambda: generator.set_state(kept),
    ]
    for trial in trials:
        told, state = read(), generator.get_state()
        trial()
        if (read() != told) == torch.equal(generator.get_state(), state):
            return False
    return _offset_of_words(generator) == offset


_KINDS = (torch.float32, torch.float64, torch.bfloat16)


def _nothing() -> bytes:
    return b""


def _made_reader() -> Callable[[], bytes]:
    trial = torch.Generator().manual_seed(4357)
    if type(getattr(trial, "_cdata", None)) is not int:
        return _nothing
    torch.rand(3, generator=trial)
    offset = _offset_of_words(trial)
    if offset is None or not _tells(trial, offset) or _offset_of_words(torch.default_generator) != offset:
        return _nothing
    return _reader(torch.default_generator, offset)


#: What tells where the global generator stands; empty where that cannot be read.
read_telling = _made_reader()
