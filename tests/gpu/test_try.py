"""``trainwright try`` on a GPU: what is compared is repeatable there, and speeds are those of usual runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

#: The gradient of its embedding is a sum whose order the GPU chooses, unless it is told not to.
SCRIPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=512, **sizes))
tokens = torch.randint(0, 64, (64, 512), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": row, "labels": row} for row in tokens]
args = TrainingArguments("out", per_device_train_batch_size=8, bf16=True, learning_rate=1e-3, report_to="none")
Trainer(model, args, train_dataset=rows).train()
"""


@pytest.mark.timeout(400)
def test_both_agree_and_resume_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    places = f"{Path(__file__).parents[2]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "trainwright", "try", "--steps", "6", "--json", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    facts = json.loads(done.stdout)
    assert done.returncode == 0, facts
    assert facts["losses"]["agrees"]
    assert facts["resume"]["trainwright"]["equal"]
    assert facts["resume"]["transformers"]["repeatable"]
    assert facts["speed"]["trainwright"]["peak_gpu_memory_bytes"] > 0
