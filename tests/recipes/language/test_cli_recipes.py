"""``trainwright recipe show`` and ``check``: pictures, exit codes, messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import trainwright.cli  # noqa: F401 - registers the commands
from trainwright.cli.app import app

RECIPE = """\
num_epochs: 30
prune_end: eval(num_epochs * 0.8)
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: eval(num_epochs)}
pruning_modifiers:
  - !MagnitudePruningModifier
      params: __ALL_PRUNABLE__
      init_sparsity: 0.05
      final_sparsity: 0.9
      start_epoch: 2
      end_epoch: eval(prune_end)
      update_frequency: 0.5
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["recipe", *words])


def test_show(recipe: Path) -> None:
    done = call("show", str(recipe), "--args", "num_epochs=20")
    assert done.exit_code == 0
    assert done.output.startswith(f"{recipe}: 2 modifiers, 20 epochs\n")
    assert "sparsity 5% → 90%, cubic, every 0.5 epochs, __ALL_PRUNABLE__" in done.output
    assert "prune_end = 16.0" in done.output
    assert max(map(len, done.output.split("\n")[1:])) <= 80


def test_check(recipe: Path) -> None:
    done = call("check", str(recipe))
    assert done.exit_code == 0
    assert done.output == f"{recipe} is good: 2 modifiers, 30 epochs.\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("0.05", "1.5"), "recipe.yaml:6: MagnitudePruningModifier:"),
        (("update_frequency", "update_frequence"), "recipe.yaml:6: MagnitudePruningModifier has no argument"),
        (("init_sparsity: 0.05", "leave_enabled: true"), "recipe.yaml:6: MagnitudePruningModifier needs init_sparsity"),
        (
            ("eval(prune_end)", "eval(prune_stop)"),
            "recipe.yaml:11: eval(prune_stop): there is no variable 'prune_stop'",
        ),
        (("num_epochs: 30", "num_epochs: [30"), "recipe.yaml:"),
    ],
)
def test_check_names_the_line(recipe: Path, change: tuple[str, str], message: str) -> None:
    recipe.write_text(RECIPE.replace(*change))
    done = call("check", str(recipe))
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize("command", ["show", "check"])
def test_mistakes_are_bad_usage(recipe: Path, command: str) -> None:
    for words in ([str(recipe), "--args", "num_epoch=3"], [str(recipe.with_name("other.yaml"))], ["zoo:stub"]):
        done = call(command, *words)
        assert done.exit_code == 2
        assert done.output.startswith("Error: ")


@pytest.mark.slow
def test_a_pipe_that_takes_ascii_only(recipe: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainwright", "recipe", "show", str(recipe)],
        capture_output=True,
        check=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )
    assert b"sparsity 5% -> 90%" in done.stdout


def test_showing_a_recipe_needs_no_torch(recipe: Path) -> None:
    script = (
        "import sys; from trainwright.recipes.language.reading import read_recipe; "
        "from trainwright.recipes.language.timeline import draw; "
        f"draw(read_recipe({str(recipe)!r}), 80); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
