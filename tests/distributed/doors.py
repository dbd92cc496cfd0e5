"""What the tests of the doors run: ``python doors.py TASK FOLDER``, alone or in several processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.compat.accmt_modules import Accuracy, Latest, make, samples
from tests.distributed.training import RANK, WORLD, Marlin
from trainwright.compat import pymarlin
from trainwright.compat.accmt import Monitor
from trainwright.compat.accmt.strategies import VARIABLE


class Deeper(Latest):
    """Two layers, the first one of several blocks."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def whole(trainer: Any) -> list[float]:
    """Weights, wherever they are."""
    native = trainer._native
    with native.strategy.whole(native.model, keep=True):
        found = [p.detach() for p in trainer.module.model.parameters()]
        found = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in found]
        return torch.cat([p.float().flatten() for p in found]).tolist()


def accmt_run(folder: Path, *, resume: bool = False, rows: int = 27, **more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    hps: dict[str, Any] = {
        "epochs": 2,
        "batch_size": [4 // WORLD, 3],
        "optim": {"type": "AdamW", "lr": 0.01},
        "scheduler": {"type": "OneCycleLR", "max_lr": 0.01},
    }
    trainer = make(
        folder,
        {"hps": hps},
        metrics=Accuracy("accuracy"),
        monitor=Monitor(learning_rate=True, grad_norm=True),
        clip_grad=1,
        checkpoint_every="3 steps",
        resume=resume,
        **more,
    )
    trainer.fit(Deeper(), samples(rows), samples(7))
    found, native = trainer.status_dict, trainer._native
    assert native is not None
    logged = [{k: v for k, v in entry.items() if k in _KEPT} for entry in native.state.log_history]
    return {
        "weights": whole(trainer),
        "rate": float(found["learning_rate"]),
        "metrics": {name: float(value) for name, value in found["additional_metrics"].items()},
        "steps": found["global_step"],
        "logged": logged,
    }


_KEPT = ("loss", "grad_norm", "eval_loss", "step")


def accmt(folder: Path) -> dict[str, Any]:
    """A run, and one that goes on from the middle of it."""
    run = folder / f"{os.environ.get(VARIABLE, 'plain')}-{WORLD}"
    answers = {"whole": accmt_run(run)}
    if WORLD > 1:
        if RANK == 0:
            newest = sorted((run / "checkpoint-model").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
            for later in newest[1:]:
                later.rename(later.with_name(f"gone-{later.name}"))
        torch.distributed.barrier()
        answers["resumed"] = accmt_run(run, resume=True)
    return answers


def marlin_run(folder: Path, backend: str, *, epochs: int = 2, load: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    args = pymarlin.TrainerArguments(
        epochs=epochs,
        train_batch_size=16,
        gpu_batch_size_limit=4,
        val_batch_size=3,
        backend=backend,
        use_gpu=False,
        writers=[],
        disable_tqdm=True,
        checkpointer_args=pymarlin.DefaultCheckpointerArguments(
            save_dir=str(folder), model_state_save_dir=str(folder), load_dir=str(folder) if load else None
        ),
        writer_args=pymarlin.WriterInitArguments(tb_log_dir=str(folder / "logs")),
    )
    module = Marlin()
    trainer = pymarlin.Trainer(module, args)
    trainer.train()
    return {
        "weights": {name: value.double().tolist() for name, value in module.state_dict().items()},
        "steps": trainer.global_steps_finished,
        "validated": module.validated,
        "epochs": len(module.seen),
    }


def marlin(folder: Path) -> dict[str, Any]:
    """Half precision; and a run that ended after one epoch, gone on with."""
    way = "sp" if WORLD == 1 else "ddp"
    answers = {"amp": marlin_run(folder / f"amp-{WORLD}", f"{way}-amp"), "full": marlin_run(folder / f"f-{WORLD}", way)}
    if WORLD > 1:
        run = folder / "amp-2"
        if RANK == 0:
            (run / "model_1.safetensors").unlink()
        torch.distributed.barrier()
        answers["resumed"] = marlin_run(run, f"{way}-amp", load=True)
    return answers


TASKS = {"accmt": accmt, "marlin": marlin}

if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    strategy = os.environ.get(VARIABLE, "plain")
    for chosen in sys.argv[1].split(","):
        answers = TASKS[chosen](place / chosen)
        (place / f"{chosen}-{strategy}-{WORLD}-{RANK}.json").write_text(json.dumps(answers))
    sys.stdout.flush()
    os._exit(0)
