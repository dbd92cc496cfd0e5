"""A training in two processes; each writes sums of its weights: two_processes.py FOLDER ACCELERATION find|trust"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tests.acceleration.networks import llama
from tests.acceleration.test_runs import rows
from trainwright import Trainer, TrainingArguments

folder, wanted, unused = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "find"
torch.manual_seed(0)
args = TrainingArguments(
    str(folder),
    max_steps=3,
    per_device_train_batch_size=4,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    acceleration=wanted,
    ddp_find_unused_parameters=unused,
)
trainer = Trainer(llama(), args, train_dataset=rows())
trainer.train()
(folder / f"rank-{args.process_index}.json").write_text(
    json.dumps({name: one.double().sum().item() for name, one in trainer.model.state_dict().items()}), encoding="utf-8"
)
