"""Tensors laid out by us are read back by safetensors' own library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from trainwright.checkpoint.durable import facts_of, write_file
from trainwright.checkpoint.pack import TensorPack, file_chunks

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]

tensors = st.dictionaries(
    st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
    max_size=6,
)


def made(kinds: dict[str, tuple[torch.dtype, list[int]]]) -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape).mul(9).to(dtype) for name, (dtype, shape) in kinds.items()}


@pytest.mark.slow
@given(kinds=tensors, transposed=st.booleans())
def test_what_is_packed_is_what_safetensors_reads(
    tmp_path_factory: pytest.TempPathFactory, kinds: dict[str, tuple[torch.dtype, list[int]]], transposed: bool
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    state = made(kinds)
    if transposed:
        state = {name: tensor.transpose(0, -1) if tensor.ndim > 1 else tensor for name, tensor in state.items()}
    pack = TensorPack(state)
    pack.copy(state)
    assert pack.fits(state)
    for name, chunks in (("packed", pack.chunks()), ("direct", file_chunks(state))):
        facts = write_file(folder / name, chunks)
        assert facts == facts_of(folder / name)
        loaded = load_file(folder / name)
        assert loaded.keys() == state.keys()
        for key, tensor in state.items():
            assert loaded[key].dtype == tensor.dtype
            assert torch.equal(loaded[key], tensor)
        with safe_open(folder / name, "pt") as file:
            assert file.metadata()["format"] == "pt"


def test_a_pack_is_filled_again_and_notices_another_model(tmp_path: Path) -> None:
    state = {"a": torch.ones(3, 2), "b": torch.arange(4)}
    pack = TensorPack(state)
    pack.copy(state)
    state["a"].mul_(2)
    pack.copy(state)
    assert torch.equal(pack.views["a"], torch.full((3, 2), 2.0))
    assert not pack.fits({"a": torch.ones(2, 3), "b": torch.arange(4)})
    assert not pack.fits({"a": torch.ones(3, 2)})


def test_large_files_are_hashed_beside_writing(tmp_path: Path) -> None:
    state = {"large": torch.randn(3_000_000)}
    pack = TensorPack(state)
    pack.copy(state)
    assert write_file(tmp_path / "file", pack.chunks()) == facts_of(tmp_path / "file")


def test_a_type_that_cannot_be_stored_is_named() -> None:
    with pytest.raises(ValueError, match=r"spectrum is of type torch\.complex128"):
        TensorPack({"spectrum": torch.zeros(2, dtype=torch.complex128)})
