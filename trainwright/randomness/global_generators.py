"""Python's and numpy's global random generators: read, compared and put back in about a microsecond.

``random.getstate()`` takes 8 microseconds and ``np.random.get_state()`` 34, up to three times a step: a tiny step
would take 1.3 times as long (``bench/generator_states.py``). Both generators are Mersenne twisters whose state lies
in memory in a known form, so it is read and written there. Whether the form is the known one is tried out at import,
on generators made for that; where it is not, the slow functions are used, with the same results.

>>> states = GeneratorStates()
>>> before = states.capture()
>>> drawn = random.random(), np.random.rand()
>>> states.moved_since(before)
True
>>> states.restore(before)
>>> (random.random(), np.random.rand()) == drawn
True
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

import numpy as np

_WORDS = 624
_BYTES = 4 * (_WORDS + 1)  # the words and the position in them
_TELLING = 4 * 5  # the position (Python keeps it first, numpy last) and the four words beside it


class HostStates:
    """The state of both generators at one moment; ``python`` and ``numpy`` give it in the libraries' own form."""

    __slots__ = ("_numpy", "_python")

    def __init__(self, python: Any, numpy: Any) -> None:
        self._python = python
        self._numpy = numpy

    @property
    def python(self) -> tuple[Any, ...]:
        """What ``random.getstate()`` gave at that moment, for ``random.setstate``."""
        words, cached = self._python
        if not isinstance(words, bytes):
            return words
        position, *state = struct.unpack(f"={_WORDS + 1}I", words)
        return (random.Random.VERSION, (*state, position), cached)

    @property
    def numpy(self) -> dict[str, Any]:
        """What ``np.random.get_state(legacy=False)`` gave at that moment, for ``np.random.set_state``."""
        words, has_gauss, gauss = self._numpy
        if not isinstance(words, bytes):
            return words.state
        key = np.frombuffer(words, np.uint32, _WORDS).copy()
        position = int.from_bytes(words[-4:], "little" if np.little_endian else "big")
        state = {"key": key, "pos": position}
        return {"bit_generator": "MT19937", "state": state, "has_gauss": has_gauss, "gauss": gauss}


class GeneratorStates:
    """Reads and restores the global generators of ``random`` and ``numpy.random``.

    Remembers the last state that it read, to give it again while nobody draws; any number of objects may be used side
    by side. Torch's generators are not its business.
    """

    def __init__(self) -> None:
        self._python = self._numpy = bytes(_BYTES)

    def capture(self) -> HostStates:
        """The present state of both."""
        # Written out, here and below: this is done around every batch, and each call would cost as much as the reading.
        if _in_memory and _global_numpy._bit_generator is _numpy_bits:
            # Copying all words would push 10 kB through a cache of 32 to 48: a tiny step takes 3 us longer for that.
            if _python_words[:_TELLING] != self._python[:_TELLING]:
                self._python = _python_words.raw
            if _numpy_words[-_TELLING:] != self._numpy[-_TELLING:]:
                self._numpy = _numpy_words.raw
            return HostStates(
                (self._python, _global_python.gauss_next),  # type: ignore[attr-defined]
                (self._numpy, _has_gauss.value, _gauss.value),
            )
        return HostStates((random.getstate(), None), (_WholeState(np.random.get_state(legacy=False)), None, None))

    def moved_since(self, states: HostStates) -> bool:
        """Whether either drew (or was seeded) since ``states`` were captured."""
        words, python_cached = states._python
        array_words, has_gauss, _ = states._numpy
        if _in_memory and _global_numpy._bit_generator is _numpy_bits and type(array_words) is bytes:
            # The position and its neighbours tell: a draw moves the position, and by the time it is back where it was
            # (after 624 words), or after seeding, all words are new.
            return (
                _python_words[:_TELLING] != words[:_TELLING]
                or _numpy_words[-_TELLING:] != array_words[-_TELLING:]
                or _has_gauss.value != has_gauss
                or _global_python.gauss_next != python_cached  # type: ignore[attr-defined]
            )
        now = self.capture()
        return now._python != states._python or now._numpy != states._numpy

    def restore(self, states: HostStates) -> None:
        """Put both back; what they draw next is what they drew next after ``states`` were captured."""
        _write_python(states._python)
        _write_numpy(states._numpy)


class _WholeState:
    """A state as numpy gives it, comparable: for generators whose memory we cannot read."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WholeState) and _comparable(self.state) == _comparable(other.state)

    __hash__ = None  # type: ignore[assignment]


def _comparable(value: Any) -> Any:
    """``value`` with arrays as bytes, so that ``==`` compares all of it."""
    if isinstance(value, dict):
        return {key: _comparable(part) for key, part in value.items()}
    return value.tobytes() if isinstance(value, np.ndarray) else value


# ---- Python's generator: struct { PyObject head; int index; uint32_t state[624]; }, and gauss_next in its __dict__

_global_python: random.Random = random._inst  # type: ignore[attr-defined]
_PYTHON_OFFSET = object.__basicsize__


def _write_python(state: Any) -> None:
    words, cached = state
    if isinstance(words, bytes):
        _python_words.raw = words
        _global_python.gauss_next = cached  # type: ignore[attr-defined]
    else:
        random.setstate(words)


def _python_lies_as_expected() -> bool:
    """Whether the memory of a generator says what ``getstate`` says, before and after draws, and can be written."""
    first, second = random.Random(1), random.Random(2)
    if type(_global_python) is not random.Random or not hasattr(first, "gauss_next"):
        return False
    if random.Random.__basicsize__ < _PYTHON_OFFSET + _BYTES:
        return False
    for draws in (0, 1, 700):
        for _ in range(draws):
            first.random()
        memory = ctypes.string_at(id(first) + _PYTHON_OFFSET, _BYTES)
        position, *state = struct.unpack(f"={_WORDS + 1}I", memory)
        if (*state, position) != first.getstate()[1]:
            return False
    ctypes.memmove(id(second) + _PYTHON_OFFSET, memory, _BYTES)
    return second.getstate()[1] == first.getstate()[1] and second.random() == first.random()


# ---- numpy's: the bit generator says where its words lie; the cached second normal number lies in the RandomState

_global_numpy: Any = np.random.mtrand._rand  # type: ignore[attr-defined]


def _write_numpy(state: Any) -> None:
    words, has_gauss, gauss = state
    if isinstance(words, bytes):
        with _numpy_bits.lock:
            _numpy_words.raw = words
            _has_gauss.value, _gauss.value = has_gauss, gauss
    else:
        np.random.set_state(words.state)


def _words_of(generator: Any) -> bytes:
    return ctypes.string_at(generator._bit_generator.ctypes.state_address, _BYTES)


def _cached_gauss_offset() -> int | None:
    """Where in a ``RandomState`` the cached normal number lies (the flag is 8 bytes before); None if not found."""
    probe: Any = np.random.RandomState(1)
    size = np.random.RandomState.__basicsize__
    probe.randn()
    memory = ctypes.string_at(id(probe), size)
    number = struct.pack("d", probe.get_state()[4])
    offset = memory.find(number)
    if offset < 8 or memory.count(number) != 1:
        return None
    flag = ctypes.c_int.from_address(id(probe) + offset - 8)
    if flag.value != 1:
        return None
    probe.randn()
    return offset if flag.value == 0 else None


def _numpy_lies_as_expected(offset: int | None) -> bool:
    """As for Python's, with numpy's own memory."""
    if offset is None or type(_global_numpy._bit_generator) is not np.random.MT19937:
        return False
    first: Any = np.random.RandomState(1)
    second: Any = np.random.RandomState(2)
    for draws in (0, 1, 700):
        first.random_sample(draws)
        memory, (_, key, position, *_) = _words_of(first), first.get_state()
        if np.frombuffer(memory, np.uint32).tolist() != [*key.tolist(), position]:
            return False
    first.randn()
    ctypes.memmove(second._bit_generator.ctypes.state_address, _words_of(first), _BYTES)
    ctypes.memmove(id(second) + offset - 8, id(first) + offset - 8, 16)
    return second.randn(3).tolist() == first.randn(3).tolist()


_Words = ctypes.c_char * _BYTES
_gauss_offset = _cached_gauss_offset()
_in_memory = _python_lies_as_expected() and _numpy_lies_as_expected(_gauss_offset)
_numpy_bits: Any = _global_numpy._bit_generator
# Views of the memory of both global generators, which live as long as the process.
_python_words, _numpy_words, _has_gauss, _gauss = _Words(), _Words(), ctypes.c_int(), ctypes.c_double()
if _in_memory and _gauss_offset is not None:
    _python_words = _Words.from_address(id(_global_python) + _PYTHON_OFFSET)
    _numpy_words = _Words.from_address(_numpy_bits.ctypes.state_address)
    _has_gauss = ctypes.c_int.from_address(id(_global_numpy) + _gauss_offset - 8)
    _gauss = ctypes.c_double.from_address(id(_global_numpy) + _gauss_offset)
