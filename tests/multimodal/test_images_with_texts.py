"""Images with texts: from files to labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from tests.multimodal import tiny
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.experiment import running
from trainwright.experiment.building import build
from trainwright.experiment.media import read_image, varied_image

QUIET: dict[str, Any] = {"say": lambda line: None}


def experiment(folder: Path, out: Path, **more: Any) -> Path:
    described: dict[str, Any] = {
        "name": "seen",
        "model": {"name": str(folder / "model")},
        "data": {"train": str(folder / "data" / "pictures.jsonl"), "eval": str(folder / "data" / "pictures.jsonl")},
        "training": {"output_dir": str(out / "run"), "learning_rate": 1e-2, "per_device_train_batch_size": 12},
    }
    for key, value in more.items():
        described[key] = {**described.get(key, {}), **value}
    file = out / "seen.yaml"
    file.write_text(yaml.safe_dump(described, sort_keys=False))
    return file


def test_from_files_to_metrics(seen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the label is in the image and half in the text, so one alone would get half of them right."""
    # Paths are those that the table's folder shows, wherever the command is given.
    monkeypatch.chdir(tmp_path)
    settings = {"num_train_epochs": 20, "evaluate_every": "10 epochs"}
    file = experiment(seen, tmp_path, training=settings, data={"augment": True})
    found = running.train(load_experiment(file), **QUIET)
    assert found.metrics["eval_accuracy"] > 0.8
    assert running.evaluate(found.folder)["eval_accuracy"] == found.metrics["eval_accuracy"]
    running.predict(found.folder, data=str(seen / "data" / "pictures.jsonl"))
    lines = [json.loads(line) for line in (found.folder / "predictions.jsonl").read_text().splitlines()]
    right = sum(line["prediction"] == line["label"] for line in lines) / len(lines)
    assert right == pytest.approx(found.metrics["eval_accuracy"])


def test_new_rows_need_no_label_and_may_stand_elsewhere(seen: Path, tmp_path: Path) -> None:
    found = running.train(load_experiment(experiment(seen, tmp_path, training={"max_steps": 2})), **QUIET)
    (tmp_path / "new").mkdir()
    Image.new("RGB", (30, 30), tiny.COLOURS["red"]).save(tmp_path / "new" / "one.png")
    table = tiny.written(tmp_path / "new" / "rows.jsonl", [{"image": "one.png", "caption": "good film is"}])
    running.predict(found.folder, data=str(table))
    assert json.loads((found.folder / "predictions.jsonl").read_text())["prediction"] in {
        f"{said} {shown}" for said in ("good", "bad") for shown in tiny.COLOURS
    }


def test_a_resumed_run_sees_the_same_variations(seen: Path, tmp_path: Path) -> None:
    kept = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 3, "save_total_limit": 9}
    file = experiment(seen, tmp_path, training=kept, data={"augment": True})
    whole = build(load_experiment(file))
    whole.trainer.train()
    again = build(load_experiment(file, [f"training.output_dir={tmp_path / 'again'}"]))
    again.trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    states = whole.trainer.model.state_dict(), again.trainer.model.state_dict()
    assert all(map(torch.equal, states[0].values(), states[1].values()))


def test_variations_follow_from_torchs_generator() -> None:
    image = Image.linear_gradient("L").convert("RGB")
    torch.manual_seed(1)
    one, other = varied_image(image), varied_image(image)
    torch.manual_seed(1)
    assert varied_image(image).tobytes() == one.tobytes()
    assert one.tobytes() != other.tobytes()
    assert 0.8 * 255 <= one.width <= 256


def test_images_are_held_as_the_camera_was(tmp_path: Path) -> None:
    image, turned = Image.new("RGB", (40, 20)), Image.Exif()
    turned[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=turned)
    assert read_image(str(tmp_path / "turned.jpg"), "row 0").size == (20, 40)


def test_a_table_of_images_for_a_network_of_ours(seen: Path, tmp_path: Path) -> None:
    model = {"name": "cnn", "task": "image-classification", "options": {"width": 4}}
    data = {"image_size": 16, "augment": True}
    file = experiment(seen, tmp_path, model=model, data=data, training={"max_steps": 2})
    assert running.train(load_experiment(file), **QUIET).steps == 2


@pytest.mark.parametrize(
    ("lines", "more", "problem"),
    [
        (
            [{"image": "no.png", "caption": "a", "label": "x"}],
            {},
            "row [01], 'image': the image .*no.png cannot",
        ),
        ([{"image": None, "caption": "a", "label": "x"}], {}, "row [01], 'image' has nothing"),
        ([{"photo": "no.png", "caption": "a", "label": "x"}], {}, "which column is the image"),
        ([{"image": "no.png", "words": "a", "label": "x"}], {}, "which column is the text"),
        ([{"image": "no.png", "caption": "a", "label": "x"}], {"data": {"text": "caption"}}, "two columns"),
        (
            [{"image": "no.png", "caption": "a", "label": "x"}],
            {"model": {"name": "cnn", "task": "image-text-classification"}},
            "takes models of transformers such as CLIP",
        ),
    ],
)
def test_mistakes(seen: Path, tmp_path: Path, lines: list[Any], more: dict[str, Any], problem: str) -> None:
    (tmp_path / "no.png").write_bytes(b"no image")
    table = tiny.written(tmp_path / "table.jsonl", [*lines, {**lines[0], "label": "y"}])
    data = {"train": str(table), "eval": None, **more.pop("data", {})}
    file = experiment(seen, tmp_path, data=data, training={"max_steps": 1}, **more)
    with pytest.raises((ConfigError, ValueError), match=problem):
        running.train(load_experiment(file), **QUIET)


def test_built_in_numbers_are_not_varied(tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text("model: {name: cnn}\ndata: {train: digits, augment: true}\n")
    loaded = load_experiment(file)
    with pytest.raises(ConfigError, match="augment: the built-in digits are numbers already"):
        build(loaded)
