"""``checkpoint_format="hf"``: every checkpoint carries transformers' files beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interchange.runs import STEADY, build, losses
from trainwright.checkpoint.interchange.to_transformers import export_checkpoint
from trainwright.checkpoint.manifest import problems_of, read_manifest

pytestmark = pytest.mark.slow

FILES = ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"]


@pytest.fixture
def ours(tmp_path: Path) -> Any:
    trainer = build("trainwright", STEADY["bert"], tmp_path / "run", checkpoint_format="hf")
    trainer.train()
    return trainer


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def test_each_file_is_sealed_reads_safely_and_is_what_export_writes(ours: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoint-4"
    assert set(FILES) <= set(read_manifest(checkpoint)["files"])
    exported = export_checkpoint(checkpoint).folder
    for name in FILES:
        here = torch.load(checkpoint / name, weights_only=True)
        assert same(here, torch.load(exported / name, weights_only=True)), name


def test_transformers_resumes_from_it_directly(ours: Any, tmp_path: Path) -> None:
    theirs = build("transformers", STEADY["bert"], tmp_path / "theirs", save_strategy="no")
    theirs.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert losses(theirs) == losses(ours)


def test_a_changed_byte_makes_it_damaged_and_resume_takes_the_one_before(ours: Any, tmp_path: Path) -> None:
    newest = tmp_path / "run" / "checkpoint-9"
    contents = bytearray((newest / "optimizer.pt").read_bytes())
    contents[len(contents) // 2] ^= 1
    (newest / "optimizer.pt").write_bytes(contents)
    assert problems_of(newest) == ["optimizer.pt has other contents than were written (its hash differs)"]
    again = build("trainwright", STEADY["bert"], tmp_path / "run", checkpoint_format="hf")
    again.train(resume_from_checkpoint=True)
    assert again._present_run().first_step == 8
    assert losses(again) == losses(ours)


def test_our_own_resume_never_reads_them(ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("torch.load was called"))
    again = build("trainwright", STEADY["bert"], tmp_path / "run", save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert losses(again) == losses(ours)


def test_the_environment_chooses_it_and_the_model_alone_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CHECKPOINT_FORMAT", "hf")
    build("trainwright", STEADY["plain"], tmp_path / "run", max_steps=1).train()
    assert set(FILES) <= {path.name for path in (tmp_path / "run" / "checkpoint-1").iterdir()}
    build("trainwright", STEADY["plain"], tmp_path / "model", max_steps=1, save_only_model=True).train()
    assert not set(FILES) & {path.name for path in (tmp_path / "model" / "checkpoint-1").iterdir()}


def test_a_scaler_goes_along(tmp_path: Path) -> None:
    trainer = build("trainwright", STEADY["plain"], tmp_path / "run", max_steps=1, checkpoint_format="hf")
    trainer.engine.precision.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    trainer.train()
    state = torch.load(tmp_path / "run" / "checkpoint-1" / "scaler.pt", weights_only=True)
    assert state["scale"] == 8.0
