"""One random generator of any library: what it is, its state now and as JSON, and how to put it anywhere.

Known are ``random.Random``, numpy's ``Generator``, ``BitGenerator`` and ``RandomState``, and ``torch.Generator``, which
is recognised by its name: nothing here imports torch.

>>> generator = random.Random(5)
>>> state = capture(generator)
>>> drawn = generator.random()
>>> restore(generator, from_json(generator, to_json(generator, state)))
>>> generator.random() == drawn
True
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from trainwright.config.origin import class_if_imported

_ARRAY = "$array"


class Kind(NamedTuple):
    """The ways to recognise, read, write and seed the generators of one library."""

    name: str
    matches: Callable[[Any], bool]
    capture: Callable[[Any], Any]
    restore: Callable[[Any, Any], None]
    seed: Callable[[Any, int], None]
    #: A captured state as JSON, and back for a given generator.
    plain: Callable[[Any], Any]
    native: Callable[[Any, Any], Any]


def kind_of(value: object) -> Kind | None:
    """The kind of generator that ``value`` is; None for anything else."""
    return next((kind for kind in _KINDS if kind.matches(value)), None)


def capture(generator: Any) -> Any:
    """The present state; later draws do not change it."""
    return _known(generator).capture(generator)


def restore(generator: object, state: object) -> None:
    """Put ``generator`` into a captured state."""
    _known(generator).restore(generator, state)


def seed(generator: Any, number: int) -> None:
    """Start ``generator`` anew from a number of up to 63 bits."""
    _known(generator).seed(generator, number)


def to_json(generator: object, state: object) -> dict[str, Any]:
    """A captured state as data that JSON can hold."""
    kind = _known(generator)
    return {"kind": kind.name, "state": kind.plain(state)}


def from_json(generator: object, stored: dict[str, Any]) -> Any:
    """The inverse of :func:`to_json`; ``ValueError`` where the state is that of another kind of generator."""
    kind = _known(generator)
    if stored["kind"] != kind.name:
        raise ValueError(f"it was a generator of {stored['kind']} and is one of {kind.name} now")
    return kind.native(generator, stored["state"])


def digest(generator: object, state: object) -> int:
    """A number that differs where states differ."""
    text = json.dumps(to_json(generator, state), sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _known(generator: object) -> Kind:
    kind = kind_of(generator)
    assert kind is not None, f"{type(generator).__name__} is no known generator"
    return kind


# ---- arrays in JSON


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return {_ARRAY: [value.dtype.str, base64.b64encode(value.tobytes()).decode("ascii")]}
    return value.item() if isinstance(value, np.generic) else value


def _native(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    if list(value) == [_ARRAY]:
        kind, text = value[_ARRAY]
        return np.frombuffer(base64.b64decode(text), np.dtype(kind)).copy()
    return {key: _native(part) for key, part in value.items()}


# ---- random.Random


def _is_python(value: object) -> bool:
    # SystemRandom asks the operating system: it has no state.
    return issubclass(type(value), random.Random) and not issubclass(type(value), random.SystemRandom)


def _plain_python(state: Any) -> Any:
    version, words, gauss = state
    return {"version": version, "words": _plain(np.asarray(words, np.uint32)), "gauss": gauss}


def _native_python(generator: Any, stored: Any) -> Any:
    return stored["version"], tuple(_native(stored["words"]).tolist()), stored["gauss"]


# ---- numpy


def _bits(value: object) -> Any:
    return value.bit_generator if isinstance(value, np.random.Generator) else value


def _put_bits(value: object, state: object) -> None:
    _bits(value).state = state


def _seed_bits(value: object, number: int) -> None:
    bits = _bits(value)
    bits.state = type(bits)(number).state


def _native_bits(value: Any, stored: Any) -> Any:
    name = type(_bits(value)).__name__
    if stored["bit_generator"] != name:
        raise ValueError(f"it was a generator of numpy's {stored['bit_generator']} and is one of {name} now")
    return _native(stored)


# ---- torch


def _is_torch(value: object) -> bool:
    # By its class: ``isinstance`` would run code of a proxy's.
    return issubclass(type(value), class_if_imported("torch", "Generator"))


def _plain_torch(state: Any) -> Any:
    return _plain(state.numpy())


def _native_torch(generator: Any, stored: Any) -> Any:
    before = generator.get_state()
    words = _native(stored)
    if words.nbytes != before.numel():
        raise ValueError("it was on another kind of device")
    # A tensor without importing torch: the generator's own state, written over.
    before.numpy()[:] = words
    return before


_KINDS = (
    Kind(
        "python",
        _is_python,
        lambda generator: generator.getstate(),
        lambda generator, state: generator.setstate(state),
        lambda generator, number: generator.seed(number),
        _plain_python,
        _native_python,
    ),
    Kind(
        "numpy",
        lambda value: issubclass(type(value), (np.random.Generator, np.random.BitGenerator)),
        lambda generator: _bits(generator).state,
        _put_bits,
        _seed_bits,
        _plain,
        _native_bits,
    ),
    Kind(
        "numpy.RandomState",
        lambda value: issubclass(type(value), np.random.RandomState),
        lambda generator: generator.get_state(legacy=False),
        lambda generator, state: generator.set_state(state),
        lambda generator, number: generator.seed(number % 2**32),
        _plain,
        lambda generator, stored: _native(stored),
    ),
    Kind(
        "torch",
        _is_torch,
        lambda generator: generator.get_state(),
        lambda generator, state: generator.set_state(state),
        lambda generator, number: generator.manual_seed(number),
        _plain_torch,
        _native_torch,
    ),
)
