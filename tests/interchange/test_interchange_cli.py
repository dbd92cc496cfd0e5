"""The commands about checkpoints: what they print, how they end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.interchange.runs import STEADY, build, losses
from trainwright.cli import checkpoints  # registers the commands
from trainwright.cli.app import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
assert checkpoints


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    build("trainwright", STEADY["plain"], folder, max_steps=3).train()
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_verify_a_good_run_and_one_checkpoint(run: Path) -> None:
    assert call("verify", run) == (0, "checkpoint-1: good\ncheckpoint-2: good\ncheckpoint-3: good\n")
    assert call("verify", run / "checkpoint-2") == (0, "checkpoint-2: good\n")


def test_verify_names_what_is_damaged(run: Path) -> None:
    with (run / "checkpoint-2" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    (run / "checkpoint-3" / "random.safetensors").unlink()
    code, said = call("verify", run)
    assert code == 1
    assert said.splitlines() == [
        "checkpoint-1: good",
        "checkpoint-2: model.safetensors has other contents than were written (its hash differs)",
        "checkpoint-3: random.safetensors is missing",
    ]


def test_verify_what_is_no_run(tmp_path: Path) -> None:
    code, said = call("verify", tmp_path)
    assert (code, "holds no finished checkpoint" in said) == (2, True)
    assert call("verify", tmp_path / "nowhere")[0] == 2
    (tmp_path / "file").touch()
    assert call("verify", tmp_path / "file")[0] == 2


def test_export_and_import_say_how_to_go_on(run: Path) -> None:
    code, said = call("export", run / "checkpoint-2", "--to", "hf")
    out = run / "exported" / "checkpoint-2"
    assert code == 0
    assert f'resume_from_checkpoint="{out}")' in said
    code, said = call("import", out)
    assert code == 0
    assert "Imported step 2 of a transformers run" in said
    assert "Note: left out: training_args.bin (a pickled object, never read" in said
    assert f'trainer.train(resume_from_checkpoint="{out.parent / "imported" / "checkpoint-2"}")' in said
    again = build("trainwright", STEADY["plain"], run.parent / "again", max_steps=3)
    again.train(resume_from_checkpoint=str(out.parent / "imported" / "checkpoint-2"))
    logged = json.loads((run / "checkpoint-3" / "trainer_state.json").read_text())["log_history"]
    assert losses(again)[3][0] == logged[-1]["loss"]


def test_what_goes_wrong_is_said_in_a_line(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call("export", run / "checkpoint-2", "--to", "hf", "--output", out)[0] == 0
    code, said = call("export", run / "checkpoint-2", "--to", "hf", "--output", out)
    assert (code, "choose another place with --output" in said) == (2, True)
    assert call("export", run / "checkpoint-2", "--to", "nemo")[0] == 2
    assert call("export", run / "checkpoint-2")[0] == 2
    assert call("import", tmp_path / "nowhere")[0] == 2
    torch.save(Path("poison"), out / "optimizer.pt")
    code, said = call("import", out)
    assert code == 1
    assert said.startswith("Error: ")
    assert "was refused and nothing in it was run" in said
    assert "Traceback" not in said


def test_as_a_program(run: Path, tmp_path: Path) -> None:
    def program(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trainwright", *map(str, words)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    out, back = tmp_path / "out", tmp_path / "back"
    done = program("export", run / "checkpoint-2", "--to", "hf", "--output", out)
    assert (done.returncode, done.stderr) == (0, "")
    done = program("import", out, "--output", back)
    assert (done.returncode, done.stderr) == (0, "")
    assert program("verify", back).stdout == "back: good\n"
