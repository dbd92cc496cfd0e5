"""Tokens per second of a Llama-style model on one GPU: a hand-written loop, trainwright, transformers' Trainer.

    python bench/gpu_step.py [--steps 40] [--rounds 3]

bf16 autocast, fused AdamW, random tokens and weights; contenders take turns in one process; medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

SIZES = {
    "1M": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 2048,
    },
    "124M": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 32000,
    },
}
SHAPES = {"1M": (8, 128), "124M": (32, 1024)}


class Tokens(Dataset[dict[str, Tensor]]):
    def __init__(self, rows: int, length: int, vocabulary: int) -> None:
        self.ids = torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def build(size: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    options: dict[str, Any] = SIZES[size]
    config = LlamaConfig(
        num_key_value_heads=options["num_attention_heads"], max_position_embeddings=2048, use_cache=False, **options
    )
    return LlamaForCausalLM(config)


class Clock:
    """Seconds from the end of the tenth step to the end of the last."""

    def __init__(self) -> None:
        self.step = 0
        self.start = 0.0

    def tick(self) -> None:
        self.step += 1
        if self.step == 10:
            torch.cuda.synchronize()
            self.start = time.perf_counter()

    def seconds(self) -> float:
        torch.cuda.synchronize()
        return time.perf_counter() - self.start


def hand_loop(model: Any, data: Tokens, batch: int, steps: int) -> float:
    model.cuda().train()
    loader = DataLoader(data, batch_size=batch, shuffle=True, pin_memory=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    clock = Clock()
    for inputs in loader:
        inputs = {key: value.cuda(non_blocking=True) for key, value in inputs.items()}
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        clock.tick()
    return clock.seconds()


def with_trainer(library: Any) -> Callable[[Any, Tokens, int, int], float]:
    def run(model: Any, data: Tokens, batch: int, steps: int) -> float:
        clock = Clock()

        class Ticker(library.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                clock.tick()

        # Plain loops are compared here; bench/gpu.py measures what is accelerated by default.
        plain: dict[str, Any] = {"acceleration": "off"} if library.__name__ == "trainwright" else {}
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            args = library.TrainingArguments(
                folder,
                per_device_train_batch_size=batch,
                num_train_epochs=1,
                bf16=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                logging_steps=500,
                optim="adamw_torch_fused",
                dataloader_drop_last=True,
                **plain,
            )
            library.Trainer(model, args, train_dataset=data, callbacks=[Ticker()]).train()
        return clock.seconds()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    options = parser.parse_args()
    import transformers

    import trainwright

    contenders = {
        "hand loop": hand_loop,
        "trainwright": with_trainer(trainwright),
        "hf_trainer": with_trainer(transformers),
    }
    for size in options.sizes:
        batch, length = SHAPES[size]
        steps = options.steps * (5 if size == "1M" else 1)
        data = Tokens(batch * steps, length, SIZES[size]["vocab_size"])
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, run in contenders.items():
                model = build(size)
                rates[name].append((steps - 10) * batch * length / run(model, data, batch, steps))
                del model
                torch.cuda.empty_cache()
        base = statistics.median(rates["hand loop"])
        for name, values in rates.items():
            median = statistics.median(values)
            print(f"{size:6}{name:14}{median:12,.0f} tokens/s{median / base:8.3f} x hand loop", flush=True)


if __name__ == "__main__":
    main()
