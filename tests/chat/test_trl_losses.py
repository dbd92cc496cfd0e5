"""The same numbers as TRL's SFTTrainer: losses of the same conversations, step after step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chat.chats import ONE, TWO, assistant, user
from tests.chat.tiny import MARKED, model_folder
from trainwright import load_experiment
from trainwright.experiment.building import build

CHATS = [TWO, ONE, [user("Is it asleep?"), assistant("No.")], [*ONE, user("Sure?"), assistant("Quite sure, yes.")]]
STEPS = 5


def _theirs(base: Path, folder: Path) -> list[float]:
    import datasets
    import trl

    args = trl.SFTConfig(
        output_dir=str(folder / "trl"),
        max_steps=STEPS,
        per_device_train_batch_size=len(CHATS),
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        assistant_only_loss=True,
        max_length=512,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    rows = datasets.Dataset.from_list([{"messages": chat} for chat in CHATS])
    trainer = trl.SFTTrainer(model=str(base), args=args, train_dataset=rows)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_losses_are_those_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "base", MARKED)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    (tmp_path / "chat.yaml").write_text(
        "model: {name: base, task: chat}\ndata: chats.jsonl\ntraining:\n"
        f"  {{max_steps: {STEPS}, per_device_train_batch_size: {len(CHATS)}, learning_rate: 1e-2, use_cpu: true,\n"
        "  lr_scheduler_type: constant, logging_steps: 1, warmup_steps: 0, report_to: none, save_strategy: 'no'}\n"
    )
    trainer: Any = build(load_experiment(tmp_path / "chat.yaml")).trainer
    trainer.train()
    ours = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(ours) == STEPS
    assert ours == pytest.approx(_theirs(tmp_path / "base", tmp_path), abs=1e-5)
