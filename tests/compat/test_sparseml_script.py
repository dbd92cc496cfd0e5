"""A script as SparseML's own are written, from command line to saved model, after its imports were changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, HfArgumentParser

from tests.experiment.tiny import tokenizer_folder
from trainwright.compat.sparseml.transformers.sparsification import Trainer, TrainingArguments
from trainwright.recipes.language.reading import read_recipe

#: The shape of the original's own integration test: prune in blocks, distil alone, quantize in the last epoch.
CARD = """<!-- a card -->
---
version: 1.1.0
num_epochs: 3
init_lr: 1.5e-3
final_lr: 0
distill_hardness: 1.0
pruning_final_sparsity: 0.9
qat_epochs: 1
training_modifiers:
  - !EpochRangeModifier
      end_epoch: eval(num_epochs)
      start_epoch: 0.0
  - !LearningRateFunctionModifier
    start_epoch: 0
    end_epoch: eval(num_epochs)
    lr_func: linear
    init_lr: eval(init_lr)
    final_lr: eval(final_lr)
distillation_modifiers:
  - !DistillationModifier
     hardness: eval(distill_hardness)
     temperature: 2.0
     distill_output_keys: [logits]
pruning_modifiers:
  - !MagnitudePruningModifier
    params: ["re:bert.encoder.*dense.weight"]
    start_epoch: 0
    end_epoch: 1
    init_sparsity: 0.7
    final_sparsity: eval(pruning_final_sparsity)
    inter_func: cubic
    update_frequency: 0.01
    mask_type: [1, 4]
quantization_modifiers:
  - !QuantizationModifier
      start_epoch: eval(num_epochs - qat_epochs)
      disable_quantization_observer_epoch: eval(num_epochs - 0.5)
      freeze_bn_stats_epoch: eval(num_epochs - 0.5)
      quantize_embeddings: 1
      quantize_linear_activations: 0
      exclude_module_types: ['LayerNorm', 'Tanh']
      submodules:
        - bert.embeddings
        - bert.encoder
        - classifier
---
# What it is for
"""


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "Path to a model"})


@dataclass
class DataTrainingArguments:
    max_seq_length: int = field(default=16, metadata={"help": "Longest text"})
    one_shot: bool = field(default=False, metadata={"help": "Apply the recipe once"})


def sentences(count: int, seed: int) -> Dataset:
    chance = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        label = int(chance.integers(2))
        words = [str(word) for word in chance.choice(["the", "film", "is", "very", "so", "book"], 4)]
        words[int(chance.integers(4))] = str(chance.choice(["good", "fine"] if label else ["bad", "awful"]))
        rows.append({"sentence": " ".join(words), "label": label})
    return Dataset.from_list(rows)


def main(words: list[str]) -> dict[str, Any]:
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))  # type: ignore[arg-type]
    model_args, data_args, training_args = parser.parse_args_into_dataclasses(args=words)
    tokenizer: Any = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    config = AutoConfig.from_pretrained(model_args.model_name_or_path, num_labels=2)
    model = AutoModelForSequenceClassification.from_pretrained(model_args.model_name_or_path, config=config)
    teacher = training_args.distill_teacher
    if teacher not in (None, "self", "disable"):
        teacher = AutoModelForSequenceClassification.from_pretrained(teacher)

    def preprocess(examples: Any) -> Any:
        return tokenizer(examples["sentence"], max_length=data_args.max_seq_length, truncation=True)

    train, evaluation = (data.map(preprocess, batched=True) for data in (sentences(128, 0), sentences(64, 1)))
    trainer = Trainer(
        model=model,
        model_state_path=model_args.model_name_or_path,
        recipe=training_args.recipe,
        metadata_args=["per_device_train_batch_size", "max_seq_length"],
        recipe_args=training_args.recipe_args,
        teacher=teacher,
        args=training_args,
        data_args=data_args,
        train_dataset=train if training_args.do_train else None,
        eval_dataset=evaluation,
        tokenizer=tokenizer,
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
    )
    metrics: dict[str, Any] = {}
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        if not trainer.one_shot:
            trainer.log_metrics("train", result.metrics)
            trainer.save_metrics("train", result.metrics)
        trainer.save_model()
        trainer.save_state()
        trainer.save_optimizer_and_scheduler(training_args.output_dir)
    if training_args.do_eval:
        metrics = trainer.evaluate()
    return metrics


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    folder = tmp_path / "pretrained"
    size = len(tokenizer_folder(folder))
    config = BertConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def words(folder: Path, output: Path, *more: str) -> list[str]:
    usual = ["--do_train", "--do_eval", "--use_cpu", "--disable_tqdm", "true", "--per_device_train_batch_size", "16"]
    usual += ["--save_strategy", "no", "--learning_rate", "3e-3", "--seed", "1", "--report_to", "none"]
    return ["--model_name_or_path", str(folder), "--output_dir", str(output), *usual, *more]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The recipe sets the learning rate")
def test_dense_then_sparse_then_transferred(pretrained: Path, tmp_path: Path) -> None:
    dense, sparse = tmp_path / "dense", tmp_path / "sparse"
    assert main(words(pretrained, dense, "--num_train_epochs", "6"))["eval_accuracy"] > 0.9
    (tmp_path / "card.md").write_text(CARD)
    recipe = ["--recipe", str(tmp_path / "card.md"), "--distill_teacher", str(dense)]
    found = main(words(dense, sparse, *recipe, "--recipe_args", "num_epochs=4"))
    assert found["eval_accuracy"] > 0.85
    saved = read_recipe(sparse / "recipe.yaml")
    assert saved.max_epochs == 4
    assert saved.metadata is not None
    assert saved.metadata["max_seq_length"] == 16
    model = AutoModelForSequenceClassification.from_pretrained(sparse)
    weight = model.bert.encoder.layer[0].output.dense.weight
    blocks = weight.reshape(weight.shape[0], -1, 4)
    assert float((blocks == 0).all(2).float().mean()) == pytest.approx(0.9, abs=0.01)
    keep = "pruning_modifiers:\n  - !ConstantPruningModifier\n    params: ['re:bert.encoder.*dense.weight']\n"
    (tmp_path / "keep.yaml").write_text(keep)
    again = main(words(sparse, tmp_path / "next", "--recipe", str(tmp_path / "keep.yaml"), "--num_train_epochs", "1"))
    assert again["eval_accuracy"] > 0.8
    tuned = AutoModelForSequenceClassification.from_pretrained(tmp_path / "next")
    assert torch.equal(tuned.bert.encoder.layer[0].output.dense.weight == 0, weight == 0)
    assert [stage.name for stage in read_recipe(tmp_path / "next" / "recipe.yaml").stages] == ["stage_0", "stage_1"]


def test_one_shot_from_the_command_line(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "card.md").write_text(CARD)
    output = tmp_path / "once"
    main(words(pretrained, output, "--recipe", str(tmp_path / "card.md"), "--one_shot", "--distill_teacher", "disable"))
    weight = AutoModelForSequenceClassification.from_pretrained(output).bert.encoder.layer[0].output.dense.weight
    assert float((weight == 0).float().mean()) == pytest.approx(0.9, abs=0.01)
