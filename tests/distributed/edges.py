"""Less usual things with weights in parts: ``python edges.py FOLDER``, alone or under torchrun."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tests.distributed.spreading import LAST, RANK, RECIPE, WORLD, Stack, arguments, llama, rows, sentences, weights_of
from tests.trainer.test_hub import FakeHub
from trainwright import EarlyStoppingCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback
from trainwright.checkpoint import saver
from trainwright.trainer import hub

WAY = "fsdp" if WORLD > 1 else "sp"


def trainer_of(folder: Path, **more: Any) -> Trainer:
    args = arguments(folder, backend=WAY, **more)
    return Trainer(Stack().double(), args, train_dataset=rows(37), eval_dataset=rows(5, seed=2))


def best(folder: Path) -> dict[str, Any]:
    """The best model is loaded at the end, old checkpoints go, and another training follows."""
    often = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = trainer_of(folder, load_best_model_at_end=True, save_total_limit=2, learning_rate=0.3, **often)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    found = {"before": before, "best": trainer.state.best_metric, "again": trainer.evaluate()["eval_loss"]}
    found["step"] = trainer.state.best_global_step
    found["kept"] = len(list(folder.glob("checkpoint-*")))
    trainer.train()
    return found


def stopped(folder: Path) -> dict[str, Any]:
    trainer = trainer_of(folder, eval_strategy="steps", eval_steps=1, metric_for_best_model="loss", learning_rate=0.0)
    trainer.add_callback(EarlyStoppingCallback(2))
    trainer.train()
    return {"steps": trainer.state.global_step}


class BadOnce(Trainer):
    """One process has a loss that is not a number, in the first step of the second epoch, once."""

    bad = 0

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.state.global_step == 3 and RANK == LAST and self.bad < 2:
            self.bad += 1
            loss = loss * float("nan")
        return loss


def rewound(folder: Path) -> dict[str, Any]:
    args = arguments(
        folder,
        backend=WAY,
        eval_strategy="no",
        save_strategy="steps",
        save_steps=1,
        max_nonfinite_steps=1,
        rewind_on_nonfinite=True,
    )
    trainer = BadOnce(Stack().double(), args, train_dataset=rows(37))
    replace = os.replace

    def slowly(draft: Any, target: Any) -> None:
        # Two processes that write the same draft would take it from each other.
        time.sleep(0.1)
        replace(draft, target)

    with mock.patch.object(os, "replace", slowly):
        trainer.train()
    events = [json.loads(line)["kind"] for line in (folder / "events.jsonl").read_text().splitlines()]
    return {"steps": trainer.state.global_step, "rewinds": events.count("rewound")}


def adapter(folder: Path) -> dict[str, Any]:
    """LoRA: only the adapter is saved, and gone on with."""
    from peft import LoraConfig, get_peft_model

    def run(start: Any = None) -> dict[str, Any]:
        model = get_peft_model(llama(False), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        args = arguments(folder, backend=WAY, eval_strategy="no", save_strategy="steps", save_steps=2)
        trainer = Trainer(model, args, train_dataset=sentences(24))
        trainer.train(resume_from_checkpoint=start)
        return weights_of(trainer)

    whole = run()
    return {"equal": whole == run(str(folder / "checkpoint-2")), "weights": whole}


class WithNote(Trainer):
    """Writes something beside the model."""

    def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        Path(output_dir, f"note-{RANK}.txt").write_text("mine")


def own_save(folder: Path) -> dict[str, Any]:
    args = arguments(folder, backend=WAY, eval_strategy="no", save_strategy="steps", save_steps=3)
    trainer = WithNote(Stack().double(), args, train_dataset=rows(37))
    trainer.train()
    again = WithNote(Stack().double(), args, train_dataset=rows(37))
    again.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    notes = sorted(path.name for path in (folder / "checkpoint-3").glob("note-*"))
    return {"equal": weights_of(again) == weights_of(trainer), "notes": notes}


class OwnWriting(Trainer):
    """Writes the model itself, from whole weights."""

    def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        Path(output_dir, "own.txt").write_text(str(RANK))


def own_writing(folder: Path) -> dict[str, Any]:
    """With a recipe, whose masks are in parts as well."""
    trainer = OwnWriting(
        Stack().double(),
        arguments(folder, backend=WAY, eval_strategy="no", save_strategy="no"),
        train_dataset=rows(37),
        recipe=RECIPE,
        teacher=Stack(seed=9).double(),
    )
    trainer.train()
    trainer.save_model(str(folder / "model"))
    return {"files": sorted(path.name for path in (folder / "model").iterdir())}


def full_disk(folder: Path) -> dict[str, Any]:
    """One process cannot write its part of one checkpoint: nobody has that one, and training goes on."""
    real = saver.write_file

    def failing(path: Path, chunks: Any, *, force: bool = True) -> Any:
        if RANK == LAST and "checkpoint-2" in str(path):
            raise OSError(28, "No space left on device")
        return real(path, chunks, force=force)

    saver.write_file = failing
    try:
        trainer_of(folder, eval_strategy="no", save_strategy="steps", save_steps=1).train()
    finally:
        saver.write_file = real
    return {"left": sorted(path.name for path in folder.iterdir() if "checkpoint" in path.name)}


def generated(folder: Path) -> dict[str, Any]:
    """Sentences that end at different lengths, on processes with different numbers of them."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 16,
        "num_layers": 2,
        "num_heads": 2,
        "decoder_start_token_id": 0,
    }
    config = T5Config(vocab_size=30, **sizes)
    data = [{"input_ids": torch.randint(2, 30, (4 + i % 3,)), "labels": torch.randint(2, 30, (3,))} for i in range(8)]
    args = Seq2SeqTrainingArguments(
        str(folder),
        backend=WAY,
        use_cpu=True,
        max_steps=2,
        predict_with_generate=True,
        generation_max_length=6,
        per_device_train_batch_size=4 // WORLD,
        per_device_eval_batch_size=2,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(
        T5ForConditionalGeneration(config).double(),
        args,
        train_dataset=data,
        data_collator=lambda some: {k: pad_sequence([row[k] for row in some], batch_first=True) for k in some[0]},
    )
    before = trainer.predict(data[:5]).predictions.tolist()
    trainer.train()
    return {"before": before, "after": trainer.predict(data[:5]).predictions.tolist()}


def pushed(folder: Path) -> dict[str, Any]:
    """One process talks to the Hub, of what all have written; each has a profile of its own."""
    fake = FakeHub()
    with mock.patch.object(hub, "_hub_api", return_value=fake):
        often = {"save_strategy": "steps", "save_steps": 3, "profile": "steps 2-3"}
        trainer = trainer_of(folder, eval_strategy="no", push_to_hub=True, hub_strategy="all_checkpoints", **often)
        trainer.train()
        trainer.push_to_hub()
    places = [options.get("path_in_repo") for verb, options in fake.calls if verb == "upload"]
    state = [name for _, options in fake.calls for name in options.get("files", []) if name.startswith("optimizer")]
    traces = sorted(path.relative_to(folder).as_posix() for path in folder.glob("profile/**/trace.json"))
    return {"verbs": [verb for verb, _ in fake.calls], "places": places, "state": sorted(set(state)), "traces": traces}


def searched(folder: Path) -> dict[str, Any]:
    """The first process asks Optuna, whose answers differ from call to call; all train with them, and stop as one."""
    import optuna

    class Hopeless(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number == 1 and trial.last_step == 2

    tried: list[tuple[float, int]] = []

    class Note(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            tried.append((args.learning_rate, state.global_step))

    often = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "no", "num_train_epochs": 1}
    trainer = Trainer(
        model_init=lambda: Stack().double(),
        args=arguments(folder, backend=WAY, **often),
        train_dataset=rows(37),
        eval_dataset=rows(5, seed=2),
        callbacks=[Note()],
    )
    best = trainer.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)},
        n_trials=3,
        pruner=Hopeless(),
    )
    trainer.remove_callback(Note)
    return {"tried": tried, "best": [best.run_id, best.objective], "steps": trainer.train().global_step}


class Words(nn.Module):
    """The mean of words' vectors; gradients of the vectors are sparse, or another layer is in half precision."""

    def __init__(self, *, sparse: bool = False, half: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 4, sparse=sparse, dtype=torch.float64)
        self.head = nn.Linear(4, 3, dtype=torch.bfloat16 if half else torch.float64)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.words(x).mean(1).to(self.head.weight.dtype))
        return {"loss": nn.functional.cross_entropy(logits, labels)}


def words(folder: Path) -> dict[str, Any]:
    """Sparse gradients are summed over processes; what cannot be in parts is refused by name."""
    generator = torch.Generator().manual_seed(1)
    data = [
        {"x": torch.randint(0, 20, (5,), generator=generator), "labels": torch.tensor(number % 3)}
        # The last batch leaves one process without samples.
        for number in range(9)
    ]

    def train(model: nn.Module, backend: str) -> Any:
        plain = {"optim": "sgd", "learning_rate": 0.5, "weight_decay": 0.0, "max_grad_norm": 0.1, "eval_strategy": "no"}
        args = arguments(folder, backend=backend, **plain)
        trainer = Trainer(model, args, train_dataset=data)
        trainer.train()
        return weights_of(trainer)

    found: dict[str, Any] = {"weights": train(Words(sparse=True), "ddp" if WORLD > 1 else "sp"), "refused": []}
    for options in ({"sparse": True}, {"half": True}) if WORLD > 1 else ():
        try:
            train(Words(**options), "fsdp")
        except ValueError as error:
            found["refused"].append(str(error))
    return found


class Late(TrainerCallback):
    """One process begins later than the other, and steps take their time."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.2 * RANK)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.03)


def by_time(folder: Path) -> dict[str, Any]:
    """Whether it is time to save and to evaluate is decided by one clock."""
    by_clock = {"checkpoint_every": "0.25 seconds", "evaluate_every": "0.3 seconds"}
    trainer = trainer_of(folder, eval_strategy="steps", save_strategy="steps", max_steps=25, **by_clock)
    trainer.add_callback(Late())
    trainer.train()
    evaluated = [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return {"evaluated": evaluated, "saved": len(list(folder.glob("checkpoint-*")))}


TASKS = (by_time, best, stopped, rewound, adapter, own_save, own_writing, full_disk, generated, pushed, searched, words)

if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1]) / f"edges-{WORLD}"
    answers = {task.__name__: task(place / task.__name__) for task in TASKS}
    (Path(sys.argv[1]) / f"edges-{WORLD}-{RANK}.json").write_text(json.dumps(answers))
    sys.stdout.flush()
    os._exit(0)
