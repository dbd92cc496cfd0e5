"""A checkpoint of transformers' Trainer, imported, goes on as it would have gone on there."""

from __future__ import annotations

import ast
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.interchange.runs import CASES, Normed, build, losses
from trainwright.checkpoint.interchange.importing import import_checkpoint
from trainwright.checkpoint.manifest import problems_of

pytestmark = pytest.mark.slow

Straight = Callable[[str, float], Any]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Uninterrupted runs of transformers with a checkpoint after every step, each made once."""
    made: dict[tuple[str, float], Any] = {}

    def get(name: str, decay: float) -> Any:
        if (name, decay) not in made:
            torch.set_num_threads(1)
            made[name, decay] = build("transformers", CASES[name], tmp_path_factory.mktemp(name), weight_decay=decay)
            made[name, decay].train()
        return made[name, decay]

    return get


@pytest.fixture
def checkpoint(straight: Straight, tmp_path: Path) -> Path:
    """A copy of a plain module's checkpoint, to be damaged."""
    run = Path(straight("plain", 0.01).args.output_dir)
    return Path(shutil.copytree(run / "checkpoint-4", tmp_path / "checkpoint-4"))


def resume(name: str, folder: Path, imported: Path, **settings: Any) -> Any:
    trainer = build("trainwright", CASES[name], folder, **settings)
    trainer.train(resume_from_checkpoint=str(imported))
    return trainer


@pytest.mark.parametrize("step", [1, 3, 5], ids=["first-epoch", "between-epochs", "second-epoch"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("name", ["plain", pytest.param("gpt2", marks=pytest.mark.slow), "bert"])
def test_the_following_steps_are_the_same_bits(
    straight: Straight, tmp_path: Path, name: str, decay: float, step: int
) -> None:
    theirs = straight(name, decay)
    done = import_checkpoint(Path(theirs.args.output_dir) / f"checkpoint-{step}", tmp_path / "imported")
    assert (done.step, done.library, problems_of(done.folder)) == (step, "transformers", [])
    ours = resume(name, tmp_path / "run", done.folder, weight_decay=decay, save_strategy="no")
    assert losses(ours) == losses(theirs)
    assert len(losses(ours)) == 9
    for key, value in theirs.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[key], value), key


@pytest.mark.parametrize("twice", [False, True])
def test_a_checkpoint_of_transformers_is_resumed_from_as_it_is(
    straight: Straight, tmp_path: Path, caplog: pytest.LogCaptureFixture, twice: bool
) -> None:
    theirs = straight("plain", 0.01)
    source = Path(theirs.args.output_dir) / "checkpoint-4"
    before = {path.name: path.stat().st_mtime_ns for path in source.iterdir()}
    caplog.set_level(logging.INFO, "trainwright")
    runs = [resume("plain", tmp_path / "run", source, weight_decay=0.01, save_strategy="no") for _ in range(1 + twice)]
    for key, value in theirs.model.state_dict().items():
        assert torch.equal(runs[-1].model.state_dict()[key], value), key
    assert {path.name: path.stat().st_mtime_ns for path in source.iterdir()} == before
    said = [record.message for record in caplog.records if "was written by transformers" in record.message]
    assert len(said) == 1 + twice
    assert said[0].endswith("run/imported.")
    # An earlier copy of the same checkpoint made place for the new one.
    assert len(list((tmp_path / "run" / "imported").glob("*/*"))) == 1


def test_a_copy_takes_the_place_of_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    others = tmp_path / "run" / "imported" / "checkpoint-4"
    others.mkdir(parents=True)
    (others / "manifest.json").write_text("of somebody else")
    resume("plain", tmp_path / "run", checkpoint, weight_decay=0.01, save_strategy="no")
    (copy,) = (tmp_path / "run" / "imported").glob("*/checkpoint-4")
    assert problems_of(copy) == []
    (checkpoint / "optimizer.pt").write_bytes(b"cut short")
    with pytest.raises(ValueError, match=r"optimizer\.pt"):
        resume("plain", tmp_path / "run", checkpoint)
    assert problems_of(copy) == []
    assert (others / "manifest.json").read_text() == "of somebody else"


def test_a_poisoned_checkpoint_of_transformers_is_not_resumed_from(checkpoint: Path, tmp_path: Path) -> None:
    class Poison:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "was_run"), "w"))

    torch.save(Poison(), checkpoint / "optimizer.pt")
    with pytest.raises(ValueError, match=r"optimizer\.pt"):
        resume("plain", tmp_path / "run", checkpoint)
    assert not (tmp_path / "was_run").exists()


def test_evaluations_on_the_way_change_nothing(tmp_path: Path) -> None:
    case = CASES["plain"]._replace(extra={"eval_dataset": CASES["plain"].rows()[:5]})
    settings = {"eval_strategy": "steps", "eval_steps": 2}
    theirs = build("transformers", case, tmp_path / "theirs", **settings)
    theirs.train()
    imported = import_checkpoint(tmp_path / "theirs" / "checkpoint-2").folder
    ours = build("trainwright", case, tmp_path / "ours", **settings, save_strategy="no")
    ours.train(resume_from_checkpoint=str(imported))
    assert losses(ours) == losses(theirs)


def test_what_we_save_after_an_import_resumes_too(straight: Straight, tmp_path: Path) -> None:
    theirs = straight("plain", 0.0)
    imported = import_checkpoint(Path(theirs.args.output_dir) / "checkpoint-2", tmp_path / "imported").folder
    resume("plain", tmp_path / "run", imported)
    for step in (3, 4, 5):
        again = resume("plain", tmp_path / f"again-{step}", tmp_path / "run" / f"checkpoint-{step}")
        assert losses(again) == losses(theirs)


def test_by_default_it_lies_beside_the_original(checkpoint: Path) -> None:
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    (checkpoint / "tokenizer.json").write_text("{}")
    (checkpoint / "vocab.txt").write_text("a")
    (checkpoint / "secret.txt").symlink_to("/etc/hostname")
    done = import_checkpoint(checkpoint)
    assert done.folder == checkpoint.parent / "imported" / "checkpoint-4"
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name in before} == before
    names = {path.name for path in done.folder.iterdir()}
    assert {"tokenizer.json", "vocab.txt", "model.safetensors", "optimizer.safetensors", "manifest.json"} <= names
    assert not {name for name in names if name.endswith((".pt", ".pth", ".bin"))}
    assert "secret.txt" not in names
    assert "training_args.bin (a pickled object, never read" in "; ".join(done.notes)
    with pytest.raises(FileExistsError, match="choose another place"):
        import_checkpoint(checkpoint)


def as_bin(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")


def as_bin_shards(folder: Path) -> None:
    shards = {
        name.replace("model-", "pytorch_model-")[:-11] + "bin": tensors for name, tensors in shard(folder).items()
    }
    for name, tensors in shards.items():
        torch.save(tensors, folder / name)
    where = {key: name for name, tensors in shards.items() for key in tensors}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))


def as_safe_shards(folder: Path) -> None:
    shards = shard(folder)
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    where = {key: name for name, tensors in shards.items() for key in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def shard(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = names[::2], names[1::2]
    return {f"model-{i}-of-2.safetensors": {name: tensors[name] for name in half} for i, half in enumerate(halves, 1)}


@pytest.mark.parametrize("rewrite", [as_bin, as_bin_shards, as_safe_shards])
def test_weights_in_other_files(
    straight: Straight, checkpoint: Path, tmp_path: Path, rewrite: Callable[[Path], None]
) -> None:
    rewrite(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    imported = import_checkpoint(checkpoint).folder
    ours = resume("plain", tmp_path / "run", imported, weight_decay=0.01, save_strategy="no")
    assert losses(ours) == losses(straight("plain", 0.01))


class Poison:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.marker}",))


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "scaler.pt", "pytorch_model.bin"])
def test_a_poisoned_file_is_refused_and_nothing_run(checkpoint: Path, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "executed"
    if name == "pytorch_model.bin":
        (checkpoint / "model.safetensors").unlink()
    torch.save({"state": Poison(marker), "python": Poison(marker)}, checkpoint / name)
    with pytest.raises(ValueError, match=rf"{name} was refused and nothing in it was run: it asks for posix.system"):
        import_checkpoint(checkpoint)
    assert not marker.exists()
    assert not (checkpoint.parent / "imported").exists()


def test_the_pickled_arguments_are_never_read(checkpoint: Path, tmp_path: Path) -> None:
    torch.save(Poison(tmp_path / "executed"), checkpoint / "training_args.bin")
    import_checkpoint(checkpoint)
    assert not (tmp_path / "executed").exists()


def test_one_file_of_the_package_calls_torch_load_and_only_with_weights_only() -> None:
    found = []
    for path in (Path(__file__).parents[2] / "trainwright").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("torch.load"):
                found.append((path.name, {word.arg: ast.unparse(word.value) for word in node.keywords}["weights_only"]))
    assert found == [("reading.py", "True")]


def lose(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, contents: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        if isinstance(contents, str):
            (folder / name).write_text(contents)
        else:
            torch.save(contents, folder / name)

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose("optimizer.pt"), "has no optimizer.pt"),
        (lose("scheduler.pt"), "has no scheduler.pt"),
        (lose("trainer_state.json"), "is no checkpoint of transformers' Trainer"),
        (lose("model.safetensors"), "holds no weights"),
        (write("model.safetensors", "short"), "model.safetensors is damaged"),
        (write("optimizer.pt", "no zip"), "optimizer.pt cannot be read"),
        (write("optimizer.pt", {"state": {}}), "lacks state or param_groups"),
        (write("optimizer.pt", {"state": {}, "param_groups": [{"params": [0, 0]}]}), "each once"),
        (write("scheduler.pt", [1]), "scheduler.pt should be a dict"),
        (write("rng_state.pth", {"python": 1}), "does not hold the states"),
        (write("trainer_state.json", "{"), "is not what transformers writes"),
        (lambda folder: (folder / "global_step4").mkdir(), "saved in pieces"),
        (write("model.safetensors.index.json", '{"weight_map": {"a": "../../b"}}'), "is not a file beside it"),
    ],
)
def test_what_is_not_whole_is_refused(checkpoint: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(checkpoint)
    with pytest.raises(ValueError, match=message):
        import_checkpoint(checkpoint)
    assert not (checkpoint.parent / "imported").exists()


def test_a_checkpoint_without_random_state_takes_that_of_the_seed(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "rng_state.pth").unlink()
    done = import_checkpoint(checkpoint)
    assert "takes that of its seed" in "; ".join(done.notes)
    first = resume("plain", tmp_path / "run", done.folder, weight_decay=0.01, save_strategy="no")
    second = resume("plain", tmp_path / "run", done.folder, weight_decay=0.01, save_strategy="no")
    assert losses(first) == losses(second)


def test_a_run_directory_and_our_own_checkpoint_are_named(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match=f"Pass one checkpoint of the run, for example {checkpoint}"):
        import_checkpoint(checkpoint.parent)
    imported = import_checkpoint(checkpoint).folder
    with pytest.raises(ValueError, match="is a checkpoint of trainwright already"):
        import_checkpoint(imported)
    with pytest.raises(ValueError, match="--strip-prefix is for Lightning"):
        import_checkpoint(checkpoint, strip_prefix="model.")


class Wider(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.third = torch.nn.Linear(3, 3)


class Frozen(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


@pytest.mark.parametrize(("model", "message"), [(Wider, "do not fit the model"), (Frozen, "this model trains 4")])
def test_another_model_is_refused(checkpoint: Path, tmp_path: Path, model: Any, message: str) -> None:
    imported = import_checkpoint(checkpoint).folder
    trainer = build("trainwright", CASES["plain"]._replace(model=model), tmp_path / "run", weight_decay=0.01)
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=str(imported))


def test_another_weight_decay_acts(checkpoint: Path, tmp_path: Path) -> None:
    imported = import_checkpoint(checkpoint).folder
    ours = resume("plain", tmp_path / "run", imported, weight_decay=0.0)
    assert [group["weight_decay"] for group in ours.optimizer.param_groups] == [0.0, 0.0]


def test_a_changed_batch_size_is_said(checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    imported = import_checkpoint(checkpoint).folder
    resume("plain", tmp_path / "run", imported, weight_decay=0.01, per_device_train_batch_size=3, save_strategy="no")
    assert "had batches of 4 samples, this one has 3" in caplog.text


def test_the_learning_rate_and_betas_are_those_of_the_arguments(checkpoint: Path, tmp_path: Path) -> None:
    imported = import_checkpoint(checkpoint).folder
    ours = resume(
        "plain", tmp_path / "run", imported, weight_decay=0.01, adam_beta1=0.5, learning_rate=1.0, save_strategy="no"
    )
    group = ours.optimizer.param_groups[0]
    assert (list(group["betas"]), group["initial_lr"]) == ([0.5, 0.999], 1.0)
