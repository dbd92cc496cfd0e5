"""Speech recognition: from sounds in files to letters and their errors."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.multimodal import tiny
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.experiment import measures, media, running
from trainwright.experiment.building import build
from trainwright.experiment.media import read_sound, varied_sound

QUIET: dict[str, Any] = {"say": lambda line: None}


def experiment(folder: Path, out: Path, **more: Any) -> Path:
    described: dict[str, Any] = {
        "name": "speech",
        "model": {"name": str(folder / "model")},
        "data": {"train": str(folder / "data" / "sounds.jsonl"), "eval": str(folder / "data" / "sounds.jsonl")},
        "training": {"output_dir": str(out / "run"), "learning_rate": 1e-2, "per_device_train_batch_size": 4},
    }
    for key, value in more.items():
        described[key] = {**described.get(key, {}), **value}
    file = out / "speech.yaml"
    file.write_text(yaml.safe_dump(described, sort_keys=False))
    return file


@pytest.mark.parametrize(("width", "channels"), [(1, 1), (2, 1), (2, 2), (3, 1), (4, 2)])
def test_every_kind_of_plain_wave_is_the_tone_that_was_written(tmp_path: Path, width: int, channels: int) -> None:
    tiny.save_sound(tmp_path / "a.wav", "a", width=width, channels=channels)
    heard = read_sound(str(tmp_path / "a.wav"), tiny.RATE, "row 0")
    wanted = [0.5 * math.sin(2 * math.pi * tiny.TONES["a"] * place / tiny.RATE) for place in range(600)]
    assert heard[:600].tolist() == pytest.approx(wanted, abs=0.01 if width == 1 else 1e-4)


def test_other_formats_and_rates(tmp_path: Path) -> None:
    import soundfile

    tiny.save_sound(tmp_path / "b.wav", "b", rate=2 * tiny.RATE)
    values, rate = soundfile.read(tmp_path / "b.wav")
    for name in ("b.flac", "b.ogg"):
        soundfile.write(tmp_path / name, values, rate)
    soundfile.write(tmp_path / "floats.wav", values, rate, subtype="FLOAT")
    plain = read_sound(str(tmp_path / "b.wav"), tiny.RATE, "row 0")
    assert len(plain) == len(values) // 2
    wanted = [0.5 * math.sin(2 * math.pi * tiny.TONES["b"] * place / tiny.RATE) for place in range(500)]
    # Beginning and end of a sound are smoothed.
    assert plain[50:500].tolist() == pytest.approx(wanted[50:], abs=0.01)
    assert read_sound(str(tmp_path / "b.flac"), tiny.RATE, "row 0").tolist() == pytest.approx(plain.tolist(), abs=1e-3)
    assert read_sound(str(tmp_path / "floats.wav"), tiny.RATE, "").tolist() == pytest.approx(plain.tolist(), abs=1e-3)
    assert len(read_sound(str(tmp_path / "b.ogg"), tiny.RATE, "row 0")) == len(plain)
    decoded = {"array": values, "sampling_rate": rate}
    assert read_sound(decoded, tiny.RATE, "row 0").tolist() == pytest.approx(plain.tolist(), abs=1e-3)


def test_sounds_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noise.wav").write_bytes(b"RIFFnothing")
    (tmp_path / "noise.flac").write_bytes(b"nothing")
    tiny.save_sound(tmp_path / "none.wav", "")
    tiny.save_sound(tmp_path / "fast.wav", "a", rate=8000)
    for value, problem in (
        (str(tmp_path / "noise.wav"), "row 3: the sound .*noise.wav cannot be read"),
        (str(tmp_path / "noise.flac"), "row 3: the sound .*noise.flac cannot be read"),
        (str(tmp_path / "gone.wav"), "row 3: the sound .*gone.wav cannot be read: .*No such file"),
        (str(tmp_path / "none.wav"), "row 3: the sound is empty"),
        (None, "row 3 has nothing, and no sound"),
        (4, "row 3 has a int, and no sound"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_sound(value, tiny.RATE, "row 3")
    monkeypatch.setattr(media, "is_installed", lambda package: False)
    with pytest.raises(ValueError, match=r"8000 samples a second and the model hears 4000.*trainwright\[media\]"):
        read_sound(str(tmp_path / "fast.wav"), tiny.RATE, "row 3")
    with pytest.raises(ValueError, match=r"package soundfile: pip install 'trainwright\[media\]'"):
        read_sound(str(tmp_path / "noise.flac"), tiny.RATE, "row 3")


def test_variations_follow_from_torchs_generator() -> None:
    sound = torch.sin(torch.arange(2000) / 7)
    torch.manual_seed(1)
    one, other = varied_sound(sound, 4000), varied_sound(sound, 4000)
    torch.manual_seed(1)
    assert varied_sound(sound, 4000).equal(one)
    assert not one.equal(other)
    assert 0.49 < float(one.abs().max()) < 2.0
    assert len(one) == len(sound)


@settings(max_examples=100, deadline=None)
@given(st.text("ab ", max_size=6), st.text("ab ", max_size=6))
def test_edits_are_the_fewest(one: str, other: str) -> None:
    @functools.cache
    def fewest(left: Sequence[str], right: Sequence[str]) -> int:
        if not left or not right:
            return len(left) + len(right)
        change = fewest(left[1:], right[1:]) + (left[0] != right[0])
        return min(change, fewest(left[1:], right) + 1, fewest(left, right[1:]) + 1)

    assert measures.edits(one, other) == fewest(one, other)


def test_errors_are_shares_of_what_was_wanted() -> None:
    found = measures.errors(["a bb", ""], ["a b", "c d"])
    assert found == {"word_errors": 3 / 4, "letter_errors": 4 / 6}


def test_from_files_to_metrics(speech: Path, tmp_path: Path) -> None:
    file = experiment(speech, tmp_path, training={"num_train_epochs": 40, "evaluate_every": "20 epochs"})
    found = running.train(load_experiment(file), **QUIET)
    assert found.metrics["eval_letter_errors"] < 0.4
    scores = running.evaluate(found.folder)
    assert scores["eval_letter_errors"] == pytest.approx(found.metrics["eval_letter_errors"])
    running.predict(found.folder, data=str(speech / "data" / "sounds.jsonl"))
    lines = [json.loads(line) for line in (found.folder / "predictions.jsonl").read_text().splitlines()]
    pairs = [(line["prediction"], line["label"].lower()) for line in lines]
    wrong = sum(measures.edits(one, other) for one, other in pairs) / sum(len(other) for _, other in pairs)
    assert wrong == pytest.approx(scores["eval_letter_errors"])


def final_weights(file: Path, *words: str) -> dict[str, torch.Tensor]:
    loaded = load_experiment(file, ["training.output_dir=" + str(file.parent / "-".join(words)), *words])
    built = build(loaded)
    model = built.prepared.model.double()
    # Without rounding, so that what is left is what the cut does.
    model.register_forward_pre_hook(
        lambda module, args, inputs: (args, {**inputs, "input_values": inputs["input_values"].double()}),
        with_kwargs=True,
    )
    built.trainer.train()
    return {name: value.detach().clone() for name, value in built.trainer.model.state_dict().items()}


def test_how_a_batch_is_cut_changes_nothing(speech: Path, tmp_path: Path) -> None:
    steps: dict[str, Any] = {"max_steps": 3, "optim": "sgd", "save_strategy": "no", "eval_strategy": "no"}
    steps["load_best_model_at_end"] = False
    file = experiment(speech, tmp_path, training=steps)
    whole = final_weights(file, "training.per_device_train_batch_size=4")
    for words in (
        ["training.per_device_train_batch_size=2", "training.gradient_accumulation_steps=2"],
        ["training.per_device_train_batch_size=1", "training.gradient_accumulation_steps=4"],
    ):
        cut = final_weights(file, *words)
        for name, value in whole.items():
            torch.testing.assert_close(cut[name], value, rtol=1e-8, atol=1e-10)


def test_a_resumed_run_hears_the_same_variations(speech: Path, tmp_path: Path) -> None:
    kept = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 4, "save_total_limit": 9}
    file = experiment(
        speech, tmp_path, training=kept, data={"augment": True}, model={"options": {"hidden_dropout": 0.2}}
    )
    whole = build(load_experiment(file))
    whole.trainer.train()
    again = build(load_experiment(file, [f"training.output_dir={tmp_path / 'again'}"]))
    again.trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    states = whole.trainer.model.state_dict(), again.trainer.model.state_dict()
    assert all(map(torch.equal, states[0].values(), states[1].values()))
    varied = whole.prepared.train[0], whole.prepared.train[0]
    assert not (varied[0]["input_values"] == varied[1]["input_values"]).all()
    assert (whole.prepared.eval[0]["input_values"] == whole.prepared.eval[0]["input_values"]).all()


@pytest.mark.parametrize(
    ("lines", "data", "problem"),
    [
        ([{"audio": "a.wav", "text": "aaaaaaaaaaaa"}], {}, "too short for its text"),
        ([{"audio": "a.wav", "text": None}, {"audio": "a.wav", "text": "a"}], {}, "2 rows have nothing in 'text'"),
        ([{"audio": "gone.wav", "text": "a"}], {}, "row 0, 'audio': the sound gone.wav cannot be read"),
        ([{"clip": "a.wav", "text": "a"}], {}, "which column is the sound"),
        ([{"audio": "a.wav", "text": " "}], {}, "all texts in 'text' are empty"),
        ([{"audio": "a.wav", "text": "a"}], {"text": ["audio", "text"]}, "one column: that of the sound"),
    ],
)
def test_mistakes(speech: Path, tmp_path: Path, lines: list[Any], data: dict[str, Any], problem: str) -> None:
    tiny.save_sound(tmp_path / "a.wav", "a")
    table = tiny.written(tmp_path / "table.jsonl", lines * 2)
    file = experiment(speech, tmp_path, data={"train": str(table), "eval": None, **data}, training={"max_steps": 1})
    with pytest.raises((ConfigError, ValueError), match=problem):
        running.train(load_experiment(file), **QUIET)
