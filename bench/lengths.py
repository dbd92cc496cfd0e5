"""Texts of different lengths: useful tokens a second, those that are no padding.

    python bench/lengths.py                                  on a GPU: 124M Llama, 32 samples a step, bf16
    python bench/lengths.py --cpu                            on a CPU: 7M BERT classifier, 32 samples a step
    python bench/lengths.py --cpu --head                     on a CPU: 11M Llama with 8192 words, 32 samples a step
    python bench/lengths.py --library transformers --compile

Lengths are lognormal, mean 90, at most 512 tokens. trainwright runs with its default arguments, with
``acceleration="off"`` and beside transformers' Trainer; each in a process of its own, in turn, three times; medians.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

STEPS_OF_THE_RUN = 2000
CONTENDERS = {
    "trainwright": ("trainwright", {}),
    "trainwright, off": ("trainwright", {"acceleration": "off"}),
    "transformers": ("transformers", {}),
}


def build(kind: str) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    if kind == "bert":
        sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}
        config: Any = transformers.BertConfig(
            **sizes, num_attention_heads=4, vocab_size=8192, attention_probs_dropout_prob=0.0
        )
        return transformers.BertForSequenceClassification(config)
    large = kind == "124M"
    hidden, layers, words = (768, 12, 50304) if large else (256, 6, 8192)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2048 if large else 1024,
        num_hidden_layers=layers,
        num_attention_heads=12 if large else 4,
        vocab_size=words,
        use_cache=False,
        tie_word_embeddings=False,
        max_position_embeddings=2048,
    )
    return transformers.LlamaForCausalLM(config)


def texts(kind: str, count: int) -> list[dict[str, Any]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randn(count, generator=generator) * 0.8 + 4.18).exp().int().clamp(4, 512).tolist()
    words = 50304 if kind == "124M" else 8192
    found = []
    for number, length in enumerate(lengths):
        ids = torch.randint(5, words, (length,), generator=generator)
        found.append({"input_ids": ids, "labels": number % 2 if kind == "bert" else ids})
    return found


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = [one["input_ids"] for one in samples]
    batch = {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
    }
    if isinstance(samples[0]["labels"], int):
        batch["labels"] = torch.tensor([one["labels"] for one in samples])
    else:
        batch["labels"] = pad_sequence(ids, batch_first=True, padding_value=-100)
    return batch


def measure(kind: str, contender: str, given: argparse.Namespace) -> dict[str, Any]:
    """One training in this process."""
    import torch

    library, options = CONTENDERS[contender]
    trainers: Any = importlib.import_module(library)
    samples = 32
    steps, warm = (12, 4) if given.cpu else (120, 40)
    data = texts(kind, samples * STEPS_OF_THE_RUN // 10)
    model = build(kind)
    if not given.cpu:
        model.cuda()
        torch.cuda.reset_peak_memory_stats()
    times: dict[int, float] = {}
    useful = []

    def counted(batch: list[dict[str, Any]]) -> dict[str, Any]:
        found = collate(batch)
        useful.append(int(found["attention_mask"].sum()))
        return found

    class Clock(trainers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (1, warm, steps):
                if not given.cpu:
                    torch.cuda.synchronize()
                times[state.global_step] = time.perf_counter()
            if state.global_step == 20:
                times[-1] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            control.should_training_stop = state.global_step >= steps

    if given.compile:
        options = {**options, "torch_compile": True}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = trainers.TrainingArguments(
            folder,
            per_device_train_batch_size=samples,
            max_steps=STEPS_OF_THE_RUN,
            bf16=not given.cpu,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **options,
        )
        trainer = trainers.Trainer(model, args, train_dataset=data, data_collator=counted, callbacks=[Clock()])
        start = time.perf_counter()
        trainer.train()
    seconds = times[steps] - times[warm]
    return {
        # Batches come in the order of steps; a few more may have been collated ahead.
        "tokens/s": sum(useful[warm:steps]) / seconds,
        "ms": 1e3 * seconds / (steps - warm),
        "GB": 0.0 if given.cpu else torch.cuda.max_memory_allocated() / 1e9,
        "first step": times[1] - start,
        "compiled after step 20": torch._dynamo.utils.counters["stats"]["unique_graphs"] - times.get(-1, 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--head", action="store_true", help="on a CPU: a language model in place of a classifier")
    parser.add_argument("--contender", choices=list(CONTENDERS), action="append")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    kind = ("llama" if given.head else "bert") if given.cpu else "124M"
    if given.one:
        logging.basicConfig(level=logging.INFO)
        print("RESULT " + json.dumps(measure(kind, given.one, given)))
        return
    contenders = given.contender or list(CONTENDERS)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(given.rounds):
        for name in contenders:
            found = _in_a_process(name, sys.argv[1:])
            if found is not None:
                results[name].append(found)
                print(f"    {name}: {found['tokens/s']:,.0f}", flush=True)
    for name, runs in results.items():
        if not runs:
            continue
        middle = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        print(
            f"{name:18} {middle['tokens/s']:>9,.0f} useful tokens/s {middle['ms']:8.1f} ms a step  "
            f"{middle['GB']:.1f} GB  "
            f"first step {runs[0]['first step']:.1f} s, then {runs[-1]['first step']:.1f} s  "
            f"{middle['compiled after step 20']:.0f} compilations after step 20",
            flush=True,
        )


def _in_a_process(contender: str, arguments: list[str]) -> dict[str, Any] | None:
    done = subprocess.run(
        [sys.executable, __file__, *arguments, "--one", contender], capture_output=True, text=True, check=False
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("RESULT "):
            for said in done.stderr.splitlines():
                if "Faster than plain" in said:
                    print("   ", said, flush=True)
            return json.loads(line.removeprefix("RESULT "))
    print(f"{contender}: failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}", flush=True)
    return None


if __name__ == "__main__":
    main()
