"""Scripts as people have them, started by torchrun and by accelerate: two processes do what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.test_ddp import close

ROOT = Path(__file__).parents[2]
PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
# Accelerate has no other way to start several processes without mpirun; the script itself asks for the CPU.
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
ACCELERATE += ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]

SCRIPT = """
import json, os, sys
from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments

args = TrainingArguments(
    "out", per_device_train_batch_size=8 // int(os.environ.get("WORLD_SIZE", "1")), num_train_epochs=2,
    learning_rate=0.01, eval_strategy="epoch", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
)
trainer = Trainer(Plain(), args, train_dataset=classification_rows(41), eval_dataset=classification_rows(11))
trainer.train()
metrics = trainer.evaluate()
found = {
    "weights": {name: value.tolist() for name, value in trainer.model.state_dict().items()},
    "eval_loss": metrics["eval_loss"],
    "steps": trainer.state.global_step,
}
open(sys.argv[1] + str(args.process_index) + "of" + str(args.world_size), "w").write(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_torchrun_and_accelerate_launch_a_plain_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    def launched(name: str, *launcher: str, processes: int = 2) -> dict[str, Any]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [*launcher, "train.py", name]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = [json.loads((tmp_path / f"{name}{rank}of{processes}").read_text()) for rank in range(processes)]
        assert all(other == found[0] for other in found)
        return found[0]

    alone = launched("alone", *PYTHON, processes=1)
    close(launched("torchrun", *TORCHRUN), alone)
    close(launched("accelerate", *ACCELERATE), alone)
