"""What is sent to the Hub, and when. The Hub itself is replaced: nothing here leaves the machine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.trainer import hub


class FakeHub:
    """Writes down what huggingface_hub's HfApi would be asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.busy = False

    def create_repo(self, name: str, **options: Any) -> Any:
        self.calls.append(("create", {"name": name, **options}))
        return type("Url", (), {"repo_id": f"me/{name}"})()

    def upload_folder(self, **options: Any) -> Any:
        present = sorted(path.name for path in Path(options["folder_path"]).iterdir())
        self.calls.append(("upload", {**options, "files": present}))
        future: Future[None] = Future()
        if not self.busy:
            future.set_result(None)
        return future


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(hub, "_hub_api", lambda token: fake)
    return fake


def train(make_args: Callable[..., TrainingArguments], **kwargs: Any) -> Trainer:
    args = make_args(max_steps=4, save_strategy="steps", save_steps=2, push_to_hub=True, hub_model_id="mine", **kwargs)
    trainer = Trainer(Plain().float(), args, train_dataset=classification_rows(16))
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("strategy", "places"),
    [
        ("end", []),
        ("every_save", [None, None]),
        ("checkpoint", ["last-checkpoint"] * 2),
        ("all_checkpoints", ["checkpoint-2", "checkpoint-4"]),
    ],
)
def test_hub_strategy(
    make_args: Callable[..., TrainingArguments], fake_hub: FakeHub, strategy: str, places: list[Any]
) -> None:
    train(make_args, hub_strategy=strategy)
    uploads = [options for verb, options in fake_hub.calls if verb == "upload"]
    assert [options.get("path_in_repo") for options in uploads] == places
    for options in uploads:
        assert options["repo_id"] == "me/mine"
        assert "model.safetensors" in options["files"]
        # A reader of the model has no use for the optimizer; a checkpoint is nothing without it.
        assert ("optimizer.safetensors" in options.get("ignore_patterns", [])) == (strategy == "every_save")


@pytest.mark.parametrize(("always", "count"), [(False, 1), (True, 2)])
def test_an_upload_under_way_is_not_overtaken(
    make_args: Callable[..., TrainingArguments], fake_hub: FakeHub, always: bool, count: int
) -> None:
    fake_hub.busy = True
    train(make_args, hub_always_push=always)
    assert sum(verb == "upload" for verb, _ in fake_hub.calls) == count


def test_push_to_hub_writes_a_card_and_save_model_pushes(
    make_args: Callable[..., TrainingArguments], fake_hub: FakeHub
) -> None:
    trainer = train(make_args, hub_strategy="end", hub_token="hf_secret_canary_value", hub_private_repo=True)
    trainer.push_to_hub("done", tags=["digits"])
    trainer.save_model()
    uploads = [options for verb, options in fake_hub.calls if verb == "upload"]
    assert [options["commit_message"] for options in uploads] == ["done", "Model save"]
    assert fake_hub.calls[0] == ("create", {"name": "mine", "private": True, "exist_ok": True})
    folder = Path(str(trainer.args.output_dir))
    card = (folder / "README.md").read_text()
    assert "trainwright" in card
    assert "learning_rate" in card
    # What a run notes of its data and its machine stays here.
    for name in ("report.html", "evaluation.json", "samples.jsonl", "env.json", "events.jsonl"):
        assert all(name in options["ignore_patterns"] for options in uploads)
    # Folders of one's own machine are for nobody else.
    assert f"{folder.parent}/" not in card
    assert not [p for p in folder.rglob("*") if p.is_file() and b"hf_secret_canary_value" in p.read_bytes()]
