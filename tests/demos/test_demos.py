"""Both demos, as ``trainwright demo`` runs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from trainwright.cli.app import app
from trainwright.demos import charlm


def demo(*words: str) -> Result:
    return CliRunner().invoke(app, ["demo", *words])


@pytest.mark.slow
def test_digits_end_to_end_and_again_and_on(tmp_path: Path) -> None:
    output = str(tmp_path / "run")
    first = demo("--epochs", "2", "--output", output)
    assert first.exit_code == 0, first.output
    lines = first.stdout.splitlines()
    assert " parameters | 90 steps, 2 epochs | batch 32 | memory " in lines[0]
    # Of the dense network, and of the pruned one.
    assert sum("eval_accuracy" in line for line in lines) == 4
    assert "  non-zero weights     60,376 (100%)  4,226 (7%)" in lines
    assert "digits never trained on" in first.stdout
    assert f"--resume --output {output} --epochs 4" in first.stdout
    assert (tmp_path / "run" / "model.safetensors").is_file()

    again = demo("--epochs", "1", "--output", output)
    assert again.exit_code == 0
    assert again.stdout.startswith("Starting anew: ")
    assert (tmp_path / "run" / "pruned" / "recipe.yaml").is_file()
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-45"]

    resumed = demo("digits", "--resume", "--output", output, "--epochs", "2")
    assert resumed.exit_code == 0
    assert "90 steps, 2 epochs, from step 45" in resumed.stdout
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if "loss" in line] == [45, 90]

    finished = demo("digits", "--resume", "--output", output)
    assert finished.exit_code == 0
    assert "digits never trained on" in finished.stdout


@pytest.mark.slow
def test_digits_are_learned(tmp_path: Path) -> None:
    from trainwright.demos.common import DemoOptions
    from trainwright.demos.digits import run_digits

    assert run_digits(DemoOptions(tmp_path / "run"))["eval_accuracy"] > 0.97


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    from trainwright.demos.common import DemoOptions
    from trainwright.demos.digits import run_digits

    losses = [run_digits(DemoOptions(tmp_path / name, epochs=1, seed=5))["eval_loss"] for name in ("a", "b")]
    torch.rand(7)
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_lm_writes_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charlm, "_CHARACTERS", 40_000)
    done = demo("lm", "--epochs", "2", "--output", str(tmp_path / "lm"))
    assert done.exit_code == 0, done.output
    assert done.stdout.index("Before training it writes:") < done.stdout.index("After training it writes:")
    assert sum("eval_perplexity" in line for line in done.stdout.splitlines()) == 2
    assert "guessing: 96" in done.stdout


def test_documentation_without_pydoc_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert len(charlm.documentation()) > 100_000


def test_sampling_leaves_the_training_randomness_alone() -> None:
    torch.manual_seed(0)
    model = charlm.CharacterModel()
    before = torch.get_rng_state()
    assert model.write("The ", 20, seed=1) == model.write("The ", 20, seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_what_cannot_be_meant_is_refused_with_2(tmp_path: Path) -> None:
    output = tmp_path / "run"
    nothing = demo("--resume", "--output", str(output))
    assert nothing.exit_code == 2
    assert "nothing to resume" in nothing.output
    foreign = output / "checkpoint-1"
    foreign.mkdir(parents=True)
    (foreign / "trainer_state.json").write_text("{}")
    refused = demo("--output", str(output))
    assert refused.exit_code == 2
    assert "another run" in refused.output
    assert foreign.is_dir()
    (foreign / "manifest.json").write_text("{}")
    (output / "demo.json").write_text('{"demo": "digits", "epochs": 1, "batch_size": 32, "seed": 1}')
    assert "belongs to the demo 'digits'" in demo("lm", "--output", str(output)).output
    changed = demo("--resume", "--seed", "7", "--output", str(output))
    assert changed.exit_code == 2
    assert "--seed 1" in changed.output
    file = tmp_path / "file"
    file.write_text("")
    assert demo("--output", str(file / "below")).exit_code == 2


@pytest.mark.slow
def test_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    done = demo("--kill", "--output", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "bit for bit" in done.output
    assert ".checkpoint-90.writing, checkpoint-45" in done.output
    hashes = {line.split()[-1] for line in done.output.splitlines() if "sha256" in line}
    assert len(hashes) == 1
