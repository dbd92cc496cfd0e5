"""A checkpoint of ours, exported, goes on under transformers' Trainer as it would have gone on here."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.interchange.runs import CASES, STEADY, Case, build, losses
from trainwright.checkpoint.interchange.importing import import_checkpoint
from trainwright.checkpoint.interchange.to_transformers import STATE_FIELDS, export_checkpoint
from trainwright.checkpoint.manifest import problems_of

pytestmark = pytest.mark.slow

Straight = Callable[[str, Case, float], Any]

PICKLES = ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Uninterrupted runs of ours with a checkpoint after every step, each made once."""
    made: dict[Any, Any] = {}

    def get(name: str, case: Case, decay: float) -> Any:
        key = (name, case.model, decay)
        if key not in made:
            torch.set_num_threads(1)
            made[key] = build("trainwright", case, tmp_path_factory.mktemp(name), weight_decay=decay)
            made[key].train()
        return made[key]

    return get


def go_on(case: Case, folder: Path, checkpoint: Path, **settings: Any) -> Any:
    theirs = build("transformers", case, folder, save_strategy="no", **settings)
    theirs.train(resume_from_checkpoint=str(checkpoint))
    return theirs


def steps(trainer: Any, last: int) -> dict[int, tuple[float, float]]:
    return {step: value for step, value in losses(trainer).items() if step <= last}


@pytest.mark.parametrize("step", [1, 4], ids=["first-epoch", "second-epoch"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("name", ["plain", pytest.param("gpt2", marks=pytest.mark.slow), "bert"])
def test_the_following_steps_are_the_same_bits(
    straight: Straight, tmp_path: Path, name: str, decay: float, step: int
) -> None:
    ours = straight(name, STEADY[name], decay)
    done = export_checkpoint(Path(ours.args.output_dir) / f"checkpoint-{step}", tmp_path / "exported")
    assert (done.step, done.notes) == (step, [])
    theirs = go_on(STEADY[name], tmp_path / "run", done.folder, weight_decay=decay)
    assert losses(theirs) == losses(ours)
    for key, value in ours.model.state_dict().items():
        assert torch.equal(theirs.model.state_dict()[key], value), key


@pytest.mark.parametrize(("step", "last"), [(1, 3), (7, 9)], ids=["first-epoch", "last-epoch"])
@pytest.mark.parametrize("name", ["plain", pytest.param("gpt2", marks=pytest.mark.slow), "bert"])
def test_dropout_goes_on_to_the_end_of_the_epoch(
    straight: Straight, tmp_path: Path, name: str, step: int, last: int
) -> None:
    ours = straight(name, CASES[name], 0.01)
    done = export_checkpoint(Path(ours.args.output_dir) / f"checkpoint-{step}", tmp_path / "exported")
    theirs = go_on(CASES[name], tmp_path / "run", done.folder, weight_decay=0.01)
    assert steps(theirs, last) == steps(ours, last)


def test_the_folder_holds_what_transformers_reads_and_no_class(straight: Straight, tmp_path: Path) -> None:
    ours = straight("bert", STEADY["bert"], 0.0)
    source = Path(ours.args.output_dir) / "checkpoint-4"
    done = export_checkpoint(source, tmp_path / "exported")
    read = {name: torch.load(done.folder / name, weights_only=True) for name in PICKLES}
    assert {path.name for path in done.folder.iterdir()} == {
        *PICKLES, "config.json", "model.safetensors", "trainer_state.json"
    }  # fmt: skip
    assert read["training_args.bin"]["learning_rate"] == 3e-3
    groups = read["optimizer.pt"]["param_groups"]
    rebuilt = build("transformers", STEADY["bert"], tmp_path / "run").create_optimizer().param_groups
    assert [len(group["params"]) for group in groups] == [len(group["params"]) for group in rebuilt]
    assert groups[0]["betas"] == (0.9, 0.999)
    size = sum(t.nbytes for entry in read["optimizer.pt"]["state"].values() for t in entry.values())
    assert (done.folder / "optimizer.pt").stat().st_size < size + 100_000
    assert problems_of(source) == []


def test_the_state_has_the_fields_transformers_knows_and_no_other(straight: Straight, tmp_path: Path) -> None:
    known = {field.name for field in dataclasses.fields(transformers.TrainerState)}
    assert known == STATE_FIELDS
    source = Path(shutil.copytree(Path(straight("plain", STEADY["plain"], 0.0).args.output_dir), tmp_path / "run"))
    written = json.loads((export_checkpoint(source / "checkpoint-4").folder / "trainer_state.json").read_text())
    assert set(written) <= known
    assert (source / "exported" / "checkpoint-4").is_dir()
    with pytest.raises(FileExistsError, match="choose another place"):
        export_checkpoint(source / "checkpoint-4")


def test_out_and_in_again(straight: Straight, tmp_path: Path) -> None:
    ours = straight("plain", STEADY["plain"], 0.0)
    out = export_checkpoint(Path(ours.args.output_dir) / "checkpoint-4", tmp_path / "exported").folder
    back = import_checkpoint(out, tmp_path / "imported").folder
    again = build("trainwright", STEADY["plain"], tmp_path / "run", save_strategy="no")
    again.train(resume_from_checkpoint=str(back))
    assert losses(again) == losses(ours)


@pytest.mark.parametrize("kind", ["reduce_lr_on_plateau", "constant"])
def test_other_schedules(tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = {"lr_scheduler_type": kind, "warmup_steps": 0}
    if kind == "reduce_lr_on_plateau":
        settings |= {"eval_strategy": "steps", "eval_steps": 1, "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    case = STEADY["plain"]._replace(extra={"eval_dataset": STEADY["plain"].rows()[:5]})
    ours = build("trainwright", case, tmp_path / "ours", **settings)
    ours.train()
    out = export_checkpoint(tmp_path / "ours" / "checkpoint-4").folder
    theirs = go_on(case, tmp_path / "theirs", out, **settings)
    assert losses(theirs) == losses(ours)
    back = import_checkpoint(out).folder
    again = build("trainwright", case, tmp_path / "again", **settings, save_strategy="no")
    again.train(resume_from_checkpoint=str(back))
    assert losses(again) == losses(ours)


def test_an_optimizer_of_the_users_keeps_its_groups(tmp_path: Path) -> None:
    model = STEADY["plain"].model()
    optimizer = torch.optim.SGD([{"params": model.second.parameters()}, {"params": model.first.parameters()}], 0.1, 0.9)
    case = STEADY["plain"]._replace(model=lambda: model, extra={"optimizers": (optimizer, None)})
    build("trainwright", case, tmp_path / "ours", max_steps=2).train()
    out = export_checkpoint(tmp_path / "ours" / "checkpoint-2").folder
    state = torch.load(out / "optimizer.pt", weights_only=True)
    assert [group["params"] for group in state["param_groups"]] == [[0, 1], [2, 3]]
    assert torch.equal(state["state"][0]["momentum_buffer"], optimizer.state[model.second.weight]["momentum_buffer"])


def test_what_cannot_be_exported_is_refused(straight: Straight, tmp_path: Path) -> None:
    run = Path(straight("plain", STEADY["plain"], 0.0).args.output_dir)
    with pytest.raises(ValueError, match="is not a finished checkpoint"):
        export_checkpoint(run)
    out = export_checkpoint(run / "checkpoint-4", tmp_path / "exported").folder
    with pytest.raises(ValueError, match="resume it here for one step"):
        export_checkpoint(import_checkpoint(out).folder)
    damaged = Path(shutil.copytree(run / "checkpoint-4", tmp_path / "damaged"))
    (damaged / "optimizer.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"optimizer\.safetensors has 0 bytes"):
        export_checkpoint(damaged)
    assert not (tmp_path / "exported" / "damaged").exists()
