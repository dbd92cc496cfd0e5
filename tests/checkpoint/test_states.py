"""The codec of state: what goes in comes out, what cannot be kept is named, damage shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainwright.checkpoint.manifest import DamagedCheckpoint
from trainwright.checkpoint.states import (
    join_state,
    pack_checkpoint,
    pack_state,
    read_checkpoint,
    read_state,
    split_state,
    unpack_checkpoint,
    unpack_state,
    write_checkpoint,
    write_state,
)
from trainwright.core.checkpointer import Checkpoint

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) * 9
    return values.to(draw(st.sampled_from(TYPES)))


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | tensors()
    | st.just(np.float32(1.5))
    | st.just(np.arange(6).reshape(2, 3)[::-1])
)
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _bits(one) == _bits(other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@given(states)
def test_what_goes_in_comes_out(state: Any) -> None:
    assert same(join_state(*split_state(state)), state)
    assert same(unpack_state(pack_state(state)), state)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["a", "a.b", "a.b#2", "b", "__metadata__", "$tensor"]), states, max_size=6))
def test_names_that_look_alike_stay_apart(state: dict[str, Any]) -> None:
    nested = {"a": state, "a.b": torch.ones(1), "$tensor": "x", "__metadata__": torch.zeros(2)}
    assert same(unpack_state(pack_state(nested)), nested)


class Odd:
    pass


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": [0, {"b": Odd()}]}, r"my state\['a'\]\[1\]\['b'\] is a Odd"),
        ({"a": {2.5: 1}}, r"my state\['a'\] has the key 2.5 \(float\)"),
        ({"s": {1, 2}}, r"my state\['s'\] is a set"),
        ({"f": len}, "builtin_function_or_method"),
        ({"t": torch.eye(2).to_sparse()}, "sparse"),
        ({"c": torch.zeros(1).to(torch.float8_e4m3fnuz)}, "float8_e4m3fnuz"),
        ({"n": np.array(["x"])}, "ndarray of <U1"),
        ({"b": b"bytes"}, "is a bytes"),
    ],
)
def test_what_cannot_be_kept_is_named(state: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        split_state(state, "my state")


def test_a_checkpoint_as_bytes_and_as_a_file(tmp_path: Path) -> None:
    checkpoint = Checkpoint({"weight": torch.arange(3.0)}, {"epoch": 1.5}, {"optimizer": {0: {"step": torch.ones(())}}})
    for read in (
        unpack_checkpoint(pack_checkpoint(checkpoint)),
        read_checkpoint(write_checkpoint(tmp_path / "c", checkpoint)),
    ):
        assert same(vars(read), vars(checkpoint))
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert not Checkpoint()
    assert checkpoint


def test_any_altered_byte_shows(tmp_path: Path) -> None:
    state = {"weight": torch.arange(4.0), "step": 7, "note": "ä"}
    path = write_state(tmp_path / "state.safetensors", state)
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1
        with pytest.raises(DamagedCheckpoint):
            unpack_state(bytes(bad))
    for size in (0, 5, 40, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(DamagedCheckpoint, match=r"state\.safetensors is damaged"):
            read_state(path)
    path.write_bytes(good)
    assert same(read_state(path), state)


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = write_state(tmp_path / "state.safetensors", {"layer": {"weight": torch.ones(2)}})
    assert list(load_file(path)) == ["layer.weight"]


def test_a_failed_write_leaves_the_older_file(tmp_path: Path) -> None:
    path = write_state(tmp_path / "state", {"step": 1})
    with pytest.raises(ValueError, match="is a object"):
        write_state(path, {"step": object()})
    assert read_state(path) == {"step": 1}
