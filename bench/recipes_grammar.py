"""A harder proof than digits: a small BERT judges whether verbs agree with their nouns, in sentences made here.

Does the network keep its accuracy with nine weights in ten of its encoder gone? Over several seeds.

    python bench/recipes_grammar.py [--seeds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import logging
import multiprocessing
import os
import random
import statistics
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from trainwright import EvalPrediction, Trainer, TrainingArguments

NOUNS = [
    ("key", "keys"),
    ("man", "men"),
    ("door", "doors"),
    ("cabinet", "cabinets"),
    ("bird", "birds"),
    ("dog", "dogs"),
]
VERBS = [("sees", "see"), ("likes", "like"), ("is near", "are near"), ("hears", "hear"), ("was by", "were by")]
PLACES = ["near", "behind", "under", "beside", "above"]
LENGTH = 24


def sentence(dice: random.Random) -> tuple[list[str], int]:
    """A sentence with a main clause and perhaps one inside it, and whether both verbs agree with their nouns."""
    is_right = dice.random() < 0.5
    number, inner = dice.randrange(2), dice.randrange(2)
    has_clause = dice.random() < 0.7
    wrong = dice.choice(["main", "inner"]) if has_clause and not is_right else "main"
    words = noun(dice, number)
    if has_clause:
        words += ["that", *noun(dice, inner), *verb(dice, inner if is_right or wrong != "inner" else 1 - inner)]
    words += verb(dice, number if is_right or wrong != "main" else 1 - number)
    return words + noun(dice, dice.randrange(2)), int(is_right)


def noun(dice: random.Random, number: int) -> list[str]:
    """A noun of that number, perhaps followed by places with nouns of any number, which mislead."""
    words = ["the", dice.choice(NOUNS)[number]]
    for _ in range(dice.choice([0, 1])):
        words += [dice.choice(PLACES), "the", dice.choice(NOUNS)[dice.randrange(2)]]
    return words


def verb(dice: random.Random, number: int) -> list[str]:
    return dice.choice(VERBS)[number].split()


WORDS = sorted({w for pair in [*NOUNS, *VERBS] for form in pair for w in form.split()} | {*PLACES, "the", "that"})
IDS = {"[PAD]": 0, "[CLS]": 1, **{word: number + 2 for number, word in enumerate(WORDS)}}


def make(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Rows of sentences."""
    dice = random.Random(seed)
    rows = []
    for _ in range(count):
        words, label = sentence(dice)
        ids = [1, *(IDS[word] for word in words)][:LENGTH]
        padding = LENGTH - len(ids)
        rows.append(
            {
                "input_ids": torch.tensor(ids + [0] * padding),
                "attention_mask": torch.tensor([1] * len(ids) + [0] * padding),
                "labels": torch.tensor(label),
            }
        )
    return rows


def bert(width: int, layers: int, seed: int) -> Any:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"num_labels": 2}
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=len(IDS),
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=2 * width,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            **settings,
        )
    )


def right(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def train(model: Any, rows: Any, test: Any, *, seed: int, epochs: float, rate: float = 1e-3, **options: Any) -> float:
    """Train, and say what percentage of the test sentences is judged right."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=500,
            learning_rate=rate,
            warmup_steps=50,
            lr_scheduler_type="cosine",
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model, args, train_dataset=rows, compute_metrics=right, **options)
        trainer.train()
        return 100 * (trainer.predict(test).metrics or {})["test_accuracy"]


def pruning(sparsity: float, epochs: int) -> str:
    return f"""
training_modifiers:
  - !EpochRangeModifier {{start_epoch: 0.0, end_epoch: {epochs}.0}}
pruning_modifiers:
  - !GlobalMagnitudePruningModifier
      params: ["re:bert.encoder.*dense.weight", "re:bert.encoder.*(query|key|value).weight"]
      init_sparsity: 0.3
      final_sparsity: {sparsity}
      start_epoch: 0.0
      end_epoch: {0.6 * epochs}
      update_frequency: 0.1
distillation_modifiers:
  - !DistillationModifier {{hardness: 0.5, temperature: 2.0}}
"""


def one_seed(seed: int) -> dict[str, float]:
    many, test = make(16000, 10 + seed), make(2000, 99)
    found: dict[str, float] = {}
    dense = bert(64, 2, seed)
    # Twice, each with a schedule of its own: once is not enough for every seed.
    train(dense, many, test, seed=seed, epochs=8)
    found["64 wide, dense"] = train(dense, many, test, seed=seed + 1, epochs=8)
    pruned = copy.deepcopy(dense)
    found["64 wide, pruned in 10 epochs"] = train(
        pruned, many, test, seed=seed, epochs=10, recipe=pruning(0.9, 10), teacher="self"
    )
    weights = [p for n, p in pruned.named_parameters() if "encoder" in n and p.ndim > 1]
    found["zeros in its encoder"] = 100 * sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
    found["of dense"] = 100 * found["64 wide, pruned in 10 epochs"] / found["64 wide, dense"]
    return found


def quiet_seed(seed: int) -> dict[str, float]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("trainwright").setLevel(logging.ERROR)
    return one_seed(seed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, a process and a thread each")
    wanted = parser.parse_args()
    results = []
    with ProcessPoolExecutor(wanted.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for seed, found in enumerate(pool.map(quiet_seed, range(wanted.seeds))):
            results.append(found)
            print(json.dumps({"seed": seed, **{k: round(v, 2) for k, v in found.items()}}), flush=True)
    print("\n| percent right, or as said | mean | lowest | highest |\n|---|---|---|---|")
    for name in results[0]:
        values = [result[name] for result in results]
        print(f"| {name} | {statistics.mean(values):.2f} | {min(values):.2f} | {max(values):.2f} |")


if __name__ == "__main__":
    main()
