"""A checkpoint whose weights were replaced by several files, or by transformers' older form, can be resumed from."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.interchange.runs import STEADY, build, losses

pytestmark = pytest.mark.slow

FORMS = ("shards", "bin", "bins")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    # Several threads add in another order when one of them is late.
    torch.set_num_threads(1)
    trainer = build("trainwright", STEADY["bert"], tmp_path_factory.mktemp("whole"), checkpoint_format="hf")
    trainer.train()
    return trainer


@pytest.fixture
def checkpoint(whole: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(whole.args.output_dir) / "checkpoint-4", tmp_path / "checkpoint-4"))


def rewrite(checkpoint: Path, form: str) -> None:
    """Write the weights of ``checkpoint`` in another form; the file they were in goes."""
    state = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    if form == "bin":
        torch.save(state, checkpoint / "pytorch_model.bin")
        return
    stem, ending = ("model", "safetensors") if form == "shards" else ("pytorch_model", "bin")
    where = {name: f"{stem}-{1 + n % 2:05}-of-00002.{ending}" for n, name in enumerate(state)}
    for file in set(where.values()):
        part = {name: state[name] for name in state if where[name] == file}
        save_file(part, checkpoint / file) if form == "shards" else torch.save(part, checkpoint / file)
    index = checkpoint / f"{stem}.{ending}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))


def resumed(checkpoint: Path, folder: Path, **settings: Any) -> Any:
    trainer = build("trainwright", STEADY["bert"], folder, save_strategy="no", **settings)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return trainer


@pytest.mark.parametrize("form", FORMS)
def test_it_goes_on_as_before_and_says_that_it_is_not_verified(
    whole: Any, checkpoint: Path, tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    rewrite(checkpoint, form)
    names = sorted(path.name for path in checkpoint.iterdir())
    again = resumed(checkpoint, tmp_path / "run", checkpoint_format="hf")
    assert losses(again) == losses(whole)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name
    assert sorted(path.name for path in checkpoint.iterdir()) == names
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any("without verification" in line for line in said)


def test_the_newest_one_is_resumed_from_without_being_named(whole: Any, checkpoint: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole.args.output_dir, run)
    for later in range(5, 10):
        shutil.rmtree(run / f"checkpoint-{later}")
    rewrite(run / "checkpoint-4", "bin")
    trainer = build("trainwright", STEADY["bert"], run, checkpoint_format="hf", save_strategy="no")
    trainer.train(resume_from_checkpoint=True)
    assert trainer._present_run().first_step == 4
    assert losses(trainer) == losses(whole)
    assert (run / "checkpoint-4" / "pytorch_model.bin").is_file()


def test_a_copy_whose_weights_were_replaced_is_not_lost(whole: Any, checkpoint: Path, tmp_path: Path) -> None:
    rewrite(checkpoint, "shards")
    resumed(checkpoint, tmp_path / "run", checkpoint_format="hf")
    (copy,) = (tmp_path / "run" / "imported").glob("*/checkpoint-4")
    (index,) = copy.glob("*.index.json")
    state = {name: tensor for shard in copy.glob("model-*.safetensors") for name, tensor in load_file(shard).items()}
    for file in (index, *copy.glob("model-*.safetensors")):
        file.unlink()
    torch.save(state, copy / "pytorch_model.bin")
    with pytest.raises(ValueError, match="damaged"):
        # It was written with shards, which are gone: nothing is taken for them, and nothing goes.
        resumed(copy, tmp_path / "run", checkpoint_format="hf")
    assert (copy / "pytorch_model.bin").is_file()


@pytest.mark.parametrize("name", ["best", "checkpoint-4"])
def test_checkpoints_up_to_a_named_one_stay_whatever_it_is_called(
    whole: Any, checkpoint: Path, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole.args.output_dir, run)
    named = shutil.copytree(checkpoint, tmp_path / "kept" / name)
    trainer = build("trainwright", STEADY["bert"], run, checkpoint_format="hf", save_steps=50)
    trainer.train(resume_from_checkpoint=str(named))
    assert {path.name for path in run.glob("checkpoint-*")} >= {f"checkpoint-{step}" for step in range(1, 5)}
    assert not (run / "checkpoint-5").exists()


def test_without_the_format_it_is_refused_with_the_way(checkpoint: Path, tmp_path: Path) -> None:
    rewrite(checkpoint, "bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin .*checkpoint_format='hf'"):
        resumed(checkpoint, tmp_path / "run")


def test_anything_else_that_changed_is_damage(checkpoint: Path, tmp_path: Path) -> None:
    rewrite(checkpoint, "shards")
    (checkpoint / "optimizer.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"damaged: optimizer\.safetensors"):
        resumed(checkpoint, tmp_path / "run", checkpoint_format="hf")
    assert not (tmp_path / "run" / "imported").exists()


def test_a_poisoned_bin_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    class Poison:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "was_run"),))

    rewrite(checkpoint, "bin")
    torch.save(Poison(), checkpoint / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"nothing in it was run"):
        resumed(checkpoint, tmp_path / "run", checkpoint_format="hf")
    assert not (tmp_path / "was_run").exists()


def test_an_index_that_leads_out_of_the_folder_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    rewrite(checkpoint, "shards")
    index = checkpoint / "model.safetensors.index.json"
    contents = json.loads(index.read_text())
    contents["weight_map"] = {name: f"../{file}" for name, file in contents["weight_map"].items()}
    index.write_text(json.dumps(contents))
    with pytest.raises(ValueError, match="not a file beside it"):
        resumed(checkpoint, tmp_path / "run", checkpoint_format="hf")
