"""What the MindNLP door changes in a process, and that it can be changed back. Needs no MindSpore."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainwright import TrainingArguments
from trainwright.compat.mindnlp_door import torch_dtype, with_torch_dtype


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "script.py"
    file.write_text(script)
    return subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=120, cwd=folder
    )


@pytest.mark.slow
def test_the_door_names_the_engine_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run(
        """
import sys
import transformers
from transformers import BertConfig, BertModel, PreTrainedModel
before = PreTrainedModel.__dict__["from_pretrained"], transformers.__class__
import trainwright.compat.mindnlp as door
from trainwright import TrainingArguments
assert TrainingArguments("x").engine == "mindspore"
assert TrainingArguments("x", engine="torch").engine == "torch"
assert "mindspore" not in sys.modules
BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained("bert")
assert BertModel.from_pretrained("bert", ms_dtype="float16").dtype == __import__("torch").float16
assert transformers.AutoModel.from_pretrained("bert", ms_dtype="float16").dtype == __import__("torch").float16
door.close()
assert TrainingArguments("x").engine == "torch"
assert (PreTrainedModel.__dict__["from_pretrained"], transformers.__class__) == before
from transformers import Trainer
assert Trainer.__module__ == "transformers.trainer"
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_a_script_that_imports_from_transformers_gets_our_trainer_every_time(tmp_path: Path) -> None:
    done = run(
        """
import trainwright.compat.mindnlp as door
for _ in range(2):
    from transformers import Seq2SeqTrainer, Trainer, TrainingArguments
    import trainwright
    assert Trainer is trainwright.Trainer and Seq2SeqTrainer is trainwright.Seq2SeqTrainer
    assert TrainingArguments("x").engine == "mindspore"
door.close()
from transformers import Trainer
assert Trainer.__module__ == "transformers.trainer"
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_precisions_by_their_mindspore_names() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def __str__(self) -> str:
            return self.name

    assert torch_dtype(Named("Float16")) is torch.float16
    assert torch_dtype("mindspore.bfloat16") is torch.bfloat16
    assert with_torch_dtype({"ms_dtype": "float32", "num_labels": 2}) == {"dtype": torch.float32, "num_labels": 2}
    with pytest.raises(ValueError, match=r"ms_dtype=.int8. is no precision for weights: use mindspore\.float32"):
        torch_dtype("int8")
    with pytest.raises(ValueError, match="ms_dtype and dtype, which mean the same: keep one"):
        with_torch_dtype({"ms_dtype": "float16", "dtype": torch.float32})


def test_tpu_arguments_lead_to_the_jax_engine() -> None:
    with pytest.warns(FutureWarning, match='engine="jax"'):
        args = TrainingArguments("x", tpu_num_cores=1)
    assert args.engine == "jax"
    assert args.engine_devices == 1
    with pytest.warns(FutureWarning, match="engine_devices"):
        args = TrainingArguments("x", tpu_num_cores=8, per_device_train_batch_size=4)
    assert (args.engine, args.engine_devices, args.train_batch_size) == ("jax", 8, 32)
