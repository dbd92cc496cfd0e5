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


OTHER_LIBRARY = """
from transformers import Trainer
import transformers.trainer
from transformers.trainer import Trainer as Again

class Theirs(Trainer):
    pass

def later():
    from transformers import Trainer
    return Trainer, transformers.Trainer
"""


@pytest.mark.slow
def test_installed_packages_are_left_alone(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "other_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(OTHER_LIBRARY)
    (tmp_path / "helper.py").write_text("from transformers import Trainer\n")
    done = run(
        """
import sys
sys.path.insert(0, "site-packages")
import trainwright.compat.mindnlp as door
import other_library, helper, trainwright
for _ in range(2):
    from transformers import Trainer
    import transformers
    from transformers.trainer import Trainer as Long
    assert Trainer is Long is transformers.Trainer is transformers.trainer.Trainer is trainwright.Trainer
    assert helper.Trainer is trainwright.Trainer
    assert other_library.Theirs.__mro__[1].__module__ == "transformers.trainer"
    assert {each.__module__ for each in (*other_library.later(), other_library.Again)} == {"transformers.trainer"}
    from unittest import mock
    with mock.patch("transformers.Trainer", "mocked"):
        assert sys.modules["transformers"].Trainer == "mocked"
    # As a package does that is imported anew, and replaces itself.
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        del sys.modules[name]
door.close()
import transformers
assert transformers.Trainer.__module__ == "transformers.trainer"
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("other_library takes transformers' own Trainer, which trains with torch") == 1


@pytest.mark.slow
def test_a_script_that_has_transformers_trainer_already_is_refused_every_time(tmp_path: Path) -> None:
    done = run(
        """
from transformers import Trainer
for _ in range(2):
    try:
        import trainwright.compat.mindnlp
    except ImportError as error:
        print(error)
from trainwright import TrainingArguments
print(TrainingArguments("x").engine)
""",
        tmp_path,
    )
    *refusals, engine = done.stdout.splitlines()
    assert len(refusals) == 2, done.stderr[-2000:]
    assert all(
        "this script imported transformers' Trainer before, and would train with torch" in one for one in refusals
    )
    assert engine == "torch"


@pytest.mark.slow
def test_names_of_the_older_releases(tmp_path: Path) -> None:
    done = run(
        """
import torch
from trainwright.compat.mindnlp.engine import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from trainwright.compat.mindnlp.engine.callbacks import TrainerState
from trainwright.compat.mindnlp.engine.utils import EvalPrediction
from trainwright.compat.mindnlp.engine.train_args import TrainingArguments as Same
import trainwright.compat.mindnlp as door

class Dataset:  # as MindSpore's are asked
    def __init__(self, size=1): self.size = size
    def get_batch_size(self): return self.size
    def create_dict_iterator(self, num_epochs, output_numpy):
        return iter([{"x": torch.randn(4).numpy(), "labels": torch.tensor(i % 2).numpy()} for i in range(8)])

args = TrainingArguments("run", evaluation_strategy="epoch", optim="adamw", dataset_drop_last=True,
    dataset_num_workers=0, recompute=False, num_train_epochs=1, report_to="none")
assert Same is TrainingArguments and args.engine == "mindspore"
assert (args.optim, args.dataloader_drop_last, args.eval_strategy) == ("adamw_torch", True, "epoch")
args.engine = "torch"

class Net(torch.nn.Linear):
    def forward(self, x): return super().forward(x)
metrics = lambda prediction: {"right": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}
trainer = Trainer(Net(4, 2), args, None, Dataset(), Dataset(), None, None, metrics, [EarlyStoppingCallback()])
trainer.args.load_best_model_at_end, trainer.args.metric_for_best_model = True, "right"
trainer.train()
assert trainer.state.global_step == 1 and "eval_right" in trainer.state.log_history[0], trainer.state.log_history
for wrong in ({"train_dataset": Dataset(4)}, {"map_fn": print}):
    try:
        Trainer(torch.nn.Linear(4, 2), args, **wrong)
    except ValueError as error:
        print(error)
door.close()
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "leave .batch(4) out, and set per_device_train_batch_size=4" in done.stdout
    assert "map_fn= is not called here: map the dataset before" in done.stdout


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
