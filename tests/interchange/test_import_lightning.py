"""A ``.ckpt`` of Lightning, imported, goes on as plain torch would."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.interchange.runs import STEADY, Steady, build, losses
from trainwright.checkpoint.interchange.importing import import_checkpoint

pytestmark = pytest.mark.slow

RATE = 3e-3
OURS: dict[str, Any] = {
    "train_sampling_strategy": "sequential",
    "gradient_accumulation_steps": 1,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "learning_rate": RATE,
    "max_grad_norm": 0,
    "save_strategy": "no",
}


class Holder(nn.Module):
    """As a LightningModule holds the model that it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Steady()


def lightning_file(path: Path, *, steps: int = 4, **changes: Any) -> dict[int, float]:
    """Train ``steps`` steps with plain torch, write what Lightning writes then, go on; the losses of all 12 steps."""
    holder = Holder()
    optimizer = torch.optim.AdamW(holder.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    seen: dict[int, float] = {}
    batches = list(DataLoader(STEADY["plain"].rows(), batch_size=4))  # type: ignore[arg-type]
    for number, batch in enumerate([*batches, *batches], 1):
        loss = holder.model(**batch)["loss"]
        seen[number] = loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if number == steps:
            contents = {
                "epoch": 0,
                "global_step": steps,
                "pytorch-lightning_version": "2.6.0",
                "state_dict": holder.state_dict(),
                "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}}}},
                "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": None, "best_k_models": {}}},
                "optimizer_states": [optimizer.state_dict()],
                "lr_schedulers": [schedule.state_dict()],
            }
            torch.save(copy.deepcopy({**contents, **changes}), path)
    return seen


def resumed(folder: Path, imported: Path, **settings: Any) -> dict[int, float]:
    trainer = build("trainwright", STEADY["plain"], folder, **{**OURS, "num_train_epochs": 2, **settings})
    trainer.train(resume_from_checkpoint=str(imported))
    return {step: loss for step, (loss, _) in losses(trainer).items()}


@pytest.mark.parametrize("decay", [0.0, 0.1], ids=["one-group", "two-groups"])
@pytest.mark.parametrize("steps", [4, 7], ids=["first-epoch", "second-epoch"])
def test_the_following_steps_are_the_same(tmp_path: Path, steps: int, decay: float) -> None:
    path = tmp_path / "epoch=0-step=4.ckpt"
    straight = lightning_file(path, steps=steps)
    done = import_checkpoint(path, strip_prefix="model.")
    assert (done.library, done.folder) == ("lightning", tmp_path / "imported" / f"checkpoint-{steps}")
    assert "no random state" in "; ".join(done.notes)
    found = resumed(tmp_path / "run", done.folder, weight_decay=decay)
    assert found == {step: pytest.approx(straight[step], rel=1e-6) for step in range(steps + 1, 13)}


def test_without_a_schedule_ours_goes_on_from_the_step(tmp_path: Path) -> None:
    straight = lightning_file(tmp_path / "a.ckpt", lr_schedulers=[])
    done = import_checkpoint(tmp_path / "a.ckpt", strip_prefix="model.")
    assert "it had no schedule" in "; ".join(done.notes)
    found = resumed(tmp_path / "run", done.folder)
    assert found == {step: pytest.approx(straight[step], rel=1e-6) for step in range(5, 13)}


class Settings:
    """Something a user keeps in hyper_parameters."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hyper_parameters": {"settings": Settings()}}, r"it asks for .*Settings.*save_hyperparameters\(ignore"),
        ({"optimizer_states": [{}, {}]}, "holds 2 optimizers"),
        ({"lr_schedulers": [{}, {}]}, "holds 2 learning-rate schedules"),
        ({"optimizer_states": []}, "holds no optimizer's state"),
        ({"state_dict": {"a": 1}}, "should hold named tensors"),
        ({"global_step": "4"}, "global_step should be a int"),
    ],
)
def test_what_cannot_go_on_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    lightning_file(tmp_path / "a.ckpt", **changes)
    with pytest.raises(ValueError, match=message):
        import_checkpoint(tmp_path / "a.ckpt")
    assert not (tmp_path / "imported").exists()


def test_weights_alone_are_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "global_step": 1}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="save_weights_only=True"):
        import_checkpoint(tmp_path / "a.ckpt")


def test_names_are_cut_as_asked(tmp_path: Path) -> None:
    lightning_file(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=r"No weight's name begins with 'net\.'"):
        import_checkpoint(tmp_path / "a.ckpt", strip_prefix="net.")
    done = import_checkpoint(tmp_path / "a.ckpt")
    assert "use --strip-prefix model." in "; ".join(done.notes)
    with pytest.raises(ValueError, match="do not fit the model"):
        resumed(tmp_path / "run", done.folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_real_run_of_lightning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Steady()
            self.seen: dict[int, float] = {}

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.model(**batch)["loss"]
            self.seen[self.global_step + 1] = loss.item()
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=0.0)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    save = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=4, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    module = Module()
    rows: Any = STEADY["plain"].rows()
    lightning.Trainer(max_epochs=2, callbacks=[save], **quiet).fit(module, DataLoader(rows, batch_size=4))
    path = next((tmp_path / "ckpt").glob("*step=4.ckpt"))
    done = import_checkpoint(path, strip_prefix="model.")
    found = resumed(tmp_path / "run", done.folder, lr_scheduler_type="cosine")
    assert found == {step: pytest.approx(module.seen[step], rel=1e-5) for step in range(5, 13)}
