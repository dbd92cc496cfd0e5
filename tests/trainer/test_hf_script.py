"""A script written for transformers, run under both libraries with only its import line changed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import sys
from dataclasses import dataclass, field

import datasets
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, PreTrainedTokenizerFast

{imports}


@dataclass
class DataArguments:
    max_seq_length: int = field(default=8, metadata={{"help": "Longest sequence."}})
    num_rows: int = field(default=24)


def compute_metrics(p):
    predictions, labels = p
    return {{"accuracy": (np.argmax(predictions, axis=1) == labels).astype(np.float32).mean().item()}}


def main():
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    words = [f"w{{i}}" for i in range(28)]
    vocabulary = {{word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")

    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, data_args.max_seq_length)) for _ in range(data_args.num_rows)]
    raw = datasets.Dataset.from_dict({{"text": texts, "label": rng.integers(0, 2, data_args.num_rows).tolist()}})
    tokenized = raw.map(lambda batch: tokenizer(batch["text"]), batched=True)
    train_dataset, eval_dataset = tokenized.select(range(16)), tokenized.select(range(16, data_args.num_rows))

    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
        )
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        compute_metrics=compute_metrics,
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
        {tokenizer_name}=tokenizer,
    )
    if training_args.do_train:
        train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        metrics = train_result.metrics
        metrics["train_samples"] = len(train_dataset)
        trainer.save_model()
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate(eval_dataset=eval_dataset)
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if training_args.do_predict:
        predictions = trainer.predict(eval_dataset.remove_columns("label"), metric_key_prefix="predict").predictions
        np.savetxt(f"{{training_args.output_dir}}/predictions.txt", predictions)


if __name__ == "__main__":
    main()
"""

NAMES = "DataCollatorWithPadding, EarlyStoppingCallback, Trainer, TrainingArguments, set_seed"

COMMON = """
--do_train --do_eval --do_predict --num_train_epochs 4 --learning_rate 5e-3 --weight_decay 0.01 --seed 7
--lr_scheduler_type cosine --per_device_train_batch_size 4 --per_device_eval_batch_size 3 --save_strategy epoch
--logging_steps 2 --load_best_model_at_end --metric_for_best_model accuracy --save_total_limit 2 --max_seq_length 6
--use_cpu --disable_tqdm true
"""
VERSION_5 = f"{COMMON} --eval_strategy epoch --warmup_steps 0.1 --report_to none"
VERSION_4 = f"{COMMON} --evaluation_strategy epoch --warmup_ratio 0.1 --overwrite_output_dir"


def run(folder: Path, library: str, arguments: str, tokenizer_name: str = "processing_class") -> dict[str, Any]:
    """What the script leaves behind."""
    folder.mkdir()
    script = folder / "run_classification.py"
    script.write_text(SCRIPT.format(imports=f"from {library} import {NAMES}", tokenizer_name=tokenizer_name))
    output = folder / "output"
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "default::FutureWarning",
    }
    done = subprocess.run(
        [sys.executable, str(script), "--output_dir", str(output), *shlex.split(arguments)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return {
        "results": json.loads((output / "all_results.json").read_text()),
        "state": json.loads((output / "trainer_state.json").read_text()),
        "predictions": [float(value) for value in (output / "predictions.txt").read_text().split()],
        "files": {path.name for path in output.iterdir()},
        "stdout": done.stdout,
        "stderr": done.stderr,
    }


CLOCK = ("_runtime", "_per_second")


def settled(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.endswith(CLOCK)}


@pytest.fixture(scope="module")
def ours_in_version_5(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("script") / "ours", "trainwright", VERSION_5)


@pytest.mark.slow
def test_the_same_script_gives_the_same_results(tmp_path: Path, ours_in_version_5: dict[str, Any]) -> None:
    theirs, ours = run(tmp_path / "theirs", "transformers", VERSION_5), ours_in_version_5
    assert set(ours["results"]) - {"total_flos"} == set(theirs["results"]) - {"total_flos"}
    expected = settled(theirs["results"])
    assert settled(ours["results"]) | {"total_flos": 0} == pytest.approx(expected | {"total_flos": 0}, rel=1e-5)
    assert ours["predictions"] == pytest.approx(theirs["predictions"], rel=1e-5, abs=1e-6)
    for key in ("best_global_step", "global_step", "max_steps", "num_train_epochs"):
        assert ours["state"][key] == theirs["state"][key], key
    for mine, other in zip(ours["state"]["log_history"], theirs["state"]["log_history"], strict=True):
        assert settled(mine) == pytest.approx(settled(other), rel=1e-5, abs=1e-7)
    assert {"model.safetensors", "config.json", "tokenizer.json", "all_results.json"} <= ours["files"] & theirs["files"]
    kept = [{name for name in side["files"] if name.startswith("checkpoint-")} for side in (ours, theirs)]
    assert kept[0] == kept[1]
    for block in ("***** train metrics *****", "***** eval metrics *****", "train_samples"):
        assert block in ours["stdout"]


@pytest.mark.slow
def test_a_script_for_version_4_runs_alike(tmp_path: Path, ours_in_version_5: dict[str, Any]) -> None:
    """The old names act as the new ones do, with one warning each, and a logging directory switches TensorBoard on."""
    logs = tmp_path / "tensorboard"
    old = run(tmp_path / "old", "trainwright", f"{VERSION_4} --logging_dir {logs}", tokenizer_name="tokenizer")
    assert settled(old["results"]) == settled(ours_in_version_5["results"])
    assert old["predictions"] == ours_in_version_5["predictions"]
    for name in ("evaluation_strategy", "warmup_ratio", "overwrite_output_dir", "tokenizer="):
        lines = [line for line in old["stderr"].splitlines() if "Warning" in line and name in line]
        assert len(lines) == 1, (name, old["stderr"])
    assert list(logs.rglob("events.out.tfevents.*"))
