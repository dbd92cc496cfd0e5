"""transformers' Trainer is ours where somebody asks for it: in a process and those it starts, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.cli.underneath import STARTUP, with_startup


def python(
    script: str, folder: Path, *, before: list[str] | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    file = folder / "script.py"
    file.write_text(script)
    return subprocess.run(
        [sys.executable, *(before or []), str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=folder,
        env=environment,
    )


RUN = ["-m", "trainwright", "run"]

LIBRARY = """
from dataclasses import dataclass
from transformers import Seq2SeqTrainer, Trainer, TrainingArguments
from transformers.trainer import Trainer as SameTrainer

@dataclass
class Config(TrainingArguments):
    beta: float = 0.5
    options: dict | str | None = None
    _VALID_DICT_FIELDS = TrainingArguments._VALID_DICT_FIELDS + ["options"]

class LibraryTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(inputs["x"]) * self.args.beta
        loss = ((outputs - inputs["labels"]) ** 2).mean()
        return (loss, outputs) if return_outputs else loss
"""

SCRIPT = """
import torch
from library import Config, LibraryTrainer, SameTrainer, Trainer
rows = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(16)]
args = Config("out", max_steps=2, report_to="none", remove_unused_columns=False, options='{"a": 1}', use_cpu=True)
assert args.options == {"a": 1}
assert SameTrainer is Trainer
trainer = LibraryTrainer(torch.nn.Linear(4, 1), args, train_dataset=rows)
assert trainer.train().global_step == 2
assert isinstance(trainer.args, Config) and trainer.args.beta == 0.5
from accelerate import PartialState
assert trainer.args.distributed_state is not None and PartialState().num_processes == 1
print([kind.__module__ for kind in LibraryTrainer.__mro__])
"""


@pytest.mark.slow
def test_a_library_trains_on_our_loop_underneath_run_and_on_transformers_without(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(LIBRARY)
    ours = python(SCRIPT, tmp_path, before=RUN)
    assert ours.returncode == 0, ours.stderr[-2000:]
    assert "trainwright.trainer.trainer" in ours.stdout
    assert (tmp_path / "out" / "checkpoint-2" / "manifest.json").is_file()
    theirs = python(SCRIPT, tmp_path)
    assert theirs.returncode == 0, theirs.stderr[-2000:]
    assert "trainwright" not in theirs.stdout


@pytest.mark.slow
def test_processes_that_a_script_starts_have_it_too_and_their_own_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('their own')\n")
    script = """
import multiprocessing, subprocess, sys
def ask():
    from transformers import Trainer
    return Trainer.__module__
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawned", pool.apply(ask))
    code = "from transformers import TrainingArguments as T; print('started', T.__module__)"
    subprocess.run([sys.executable, "-c", code], check=True)
"""
    done = python(script, tmp_path, before=RUN, environment=os.environ | {"PYTHONPATH": str(tmp_path / "site")})
    assert done.returncode == 0, done.stderr[-2000:]
    assert "spawned trainwright.compat.underneath" in done.stdout
    assert "started trainwright.compat.underneath" in done.stdout
    assert "their own" in done.stdout


@pytest.mark.slow
def test_one_import_opens_the_door_and_close_gives_everything_back(tmp_path: Path) -> None:
    script = """
import sys
import transformers
import trainwright.compat.transformers as door
assert "torch" not in sys.modules or "transformers.trainer" not in sys.modules
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
import trainwright
assert issubclass(Trainer, trainwright.Trainer) and issubclass(Seq2SeqTrainer, trainwright.Seq2SeqTrainer)
assert issubclass(Seq2SeqTrainer, Trainer) and issubclass(Seq2SeqTrainingArguments, TrainingArguments)
assert transformers.trainer.Trainer is Trainer is transformers.Trainer
door.close()
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
for one in (Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments):
    assert not any("trainwright" in kind.__module__ for kind in one.__mro__), one
del Seq2SeqTrainer, Trainer, one
door.open_door()
from transformers import Trainer
assert issubclass(Trainer, trainwright.Trainer)
"""
    done = python(script, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_who_has_transformers_trainer_already_is_named(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(LIBRARY)
    done = python("import library\nimport trainwright.compat.transformers\n", tmp_path)
    assert done.returncode == 1
    assert "ImportError: library imported transformers' Trainer before" in done.stderr
    assert "Put `import trainwright.compat.transformers` before that import" in done.stderr


@pytest.mark.slow
def test_env_says_whose_trainer_it_is(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "trainwright", "run", "-m", "trainwright", "env"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert '"transformers_trainer": "trainwright"' in done.stdout
    plain = subprocess.run([*words[:3], "env"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert '"transformers_trainer": "transformers"' in plain.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "said"),
    [("missing.py", "there is no script missing.py"), ("no-such-command", "neither a Python script nor a command")],
)
def test_what_cannot_be_run_is_named(word: str, said: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, *RUN, word], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_the_exit_code_and_the_options_are_the_scripts_own(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    done = subprocess.run(
        [sys.executable, *RUN, str(file), "--help", "-x"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout.strip()) == (7, "['--help', '-x']")


@pytest.mark.slow
def test_a_file_in_this_folder_does_not_stand_for_a_command(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text("print('PLANTED')")
    words = [sys.executable, *RUN, "torchrun", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "PLANTED" not in done.stdout
    assert "nproc" in done.stdout


@pytest.mark.slow
def test_a_broken_sitecustomize_does_not_keep_the_door_shut(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("raise RuntimeError('broken')\n")
    script = "from transformers import Trainer\nprint(Trainer.__module__)\n"
    done = python(script, tmp_path, before=RUN, environment=os.environ | {"PYTHONPATH": str(tmp_path / "site")})
    assert "trainwright.compat.underneath" in done.stdout, done.stderr


def test_the_folder_is_put_into_the_path_once() -> None:
    once = with_startup({"PYTHONPATH": "a"})
    assert once["PYTHONPATH"].split(os.pathsep) == [str(STARTUP), "a"]
    assert with_startup(once) == once


@pytest.mark.slow
def test_trl_fine_tunes_with_our_trainer_underneath(tmp_path: Path) -> None:
    from tests.ecosystem.running import Case, run

    ours = run(Case("trl", "sft-lora"), tmp_path / "ours")
    assert "trainwright.trainer.trainer.Trainer" in ours.kinds
    theirs = run(Case("trl", "sft-lora"), tmp_path / "theirs", underneath=False)
    assert ours.differences(theirs) == []


HELD = """
class Warns:
    @property
    def __class__(self):
        raise FutureWarning("deprecated: do not look at me")

# torch.distributed.reduce_op is such an object
deprecated = Warns()
import transformers
transformers.Trainer
import trainwright.compat.transformers as door
from transformers import Trainer
assert transformers.Trainer is Trainer and "trainwright" in Trainer.__module__, transformers.Trainer
door.close()
assert transformers.Trainer.__module__ == "transformers.trainer"
"""


@pytest.mark.slow
def test_a_package_that_somebody_holds_gives_the_same_name(tmp_path: Path) -> None:
    """transformers replaces itself while it is imported; the script has the one from before."""
    done = python(HELD, tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_empty_entry_of_pythonpath_stays() -> None:
    assert with_startup({"PYTHONPATH": f"{os.pathsep}/x"})["PYTHONPATH"] == os.pathsep.join([str(STARTUP), "", "/x"])
    assert with_startup({})["PYTHONPATH"] == str(STARTUP)
