"""Accelerations where they are used by default: on a GPU, in bf16, with inductor's and Triton's kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.acceleration.networks import EVERY, LANGUAGE, PADDED, llama, made, made_padded
from tests.acceleration.test_runs import same, told, weights
from tests.acceleration.test_techniques import situation
from trainwright import Trainer, TrainingArguments
from trainwright.engines.torch.acceleration.blocks import CompiledBlocks, compilations
from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.chunked_loss import linear_cross_entropy
from trainwright.engines.torch.acceleration.head import NoLogits
from trainwright.engines.torch.acceleration.padding import NoPadding
from trainwright.engines.torch.acceleration.proof import Passes, errors, exact_products, nothing_dropped, worst
from trainwright.engines.torch.acceleration.technique import Technique

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def check_proven(name: str, *techniques: Technique, half: bool = True, padded: bool = False) -> None:
    """By the rule that a training goes by.

    T5 in bf16 does not pass compiled, and would be left out; in single precision it does.
    """
    half = half and name != "t5"
    network, batch = made_padded(name) if padded else made(name)
    network.cuda()
    inputs = {key: value.cuda() for key, value in batch.items()}
    passes = Passes(network, Call((), inputs), lambda: torch.autocast("cuda", torch.bfloat16, enabled=half))
    with nothing_dropped(network), exact_products():
        exact = passes.wide_gradients(torch.float32 if half else torch.float64)
        plain = errors(passes.gradients(), exact)
        there = situation(network, device=torch.device("cuda"), lengths_vary=True)
        undo = [technique.install(there) for technique in techniques]
        try:
            found = worst(errors(passes.gradients(), exact), plain)
        finally:
            for one in reversed(undo):
                one()
    assert found.passed, found


@pytest.mark.parametrize("name", LANGUAGE)
def test_no_logits(name: str) -> None:
    check_proven(name, NoLogits())


@pytest.mark.parametrize("name", EVERY)
def test_blocks(name: str) -> None:
    torch.compiler.reset()
    check_proven(name, CompiledBlocks())


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("name", PADDED)
def test_no_padding(name: str, half: bool) -> None:
    if name == "mixtral" and not half:
        # Torch multiplies experts in single precision at most: there is nothing to compare it with.
        half = True
    check_proven(name, NoPadding(), half=half, padded=True)


@pytest.mark.parametrize("name", ["llama", "bert classifier", "gpt2", "distilbert"])
def test_no_padding_in_compiled_blocks(name: str) -> None:
    torch.compiler.reset()
    check_proven(name, CompiledBlocks(), NoPadding(), padded=True)


def test_less_memory_for_the_same_gradients() -> None:
    torch.compiler.reset()
    budgeted = CompiledBlocks()
    network, batch = made("llama")
    network.cuda()
    inputs = {key: value.cuda() for key, value in batch.items()}
    passes = Passes(network, Call((), inputs), lambda: torch.autocast("cuda", torch.bfloat16))
    with nothing_dropped(network), exact_products():
        exact = passes.wide_gradients(torch.float32)
        plain = errors(passes.gradients(), exact)
        undo = budgeted.install(situation(network, device=torch.device("cuda"), memory_budget=0.2))
        found = worst(errors(passes.gradients(), exact), plain)
        undo()
    assert found.passed, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("words", [5, 4096, 50_257])
def test_the_kernel_is_cross_entropy(words: int, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    states = torch.randn(70, 16, device="cuda", generator=generator)
    weight = torch.randn(words, 16, device="cuda", generator=generator)
    target = torch.randint(0, words, (70,), device="cuda", generator=generator)
    target[::7] = -100
    leaves = [states.requires_grad_(), weight.requires_grad_()]
    with exact_products():
        total, count = linear_cross_entropy(states, weight, None, dtype, target)
        logits = F.linear(states.to(dtype), weight.to(dtype)).float()
        expected = F.cross_entropy(logits, target, reduction="sum")
        plain, found = torch.autograd.grad(expected, leaves), torch.autograd.grad(total, leaves)
    assert int(count) == 60
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-3)
    bound = 1e-4 if dtype == torch.float32 else 3e-2
    for one, other in zip(plain, found, strict=True):
        assert torch.linalg.vector_norm(other - one) <= bound * torch.linalg.vector_norm(one)


def test_rows_of_minus_infinity_do_not_become_nan() -> None:
    states = torch.ones(3, 1, device="cuda")
    bias = torch.full((9000,), float("-inf"), device="cuda")
    bias[8500:] = 0.0
    total, _ = linear_cross_entropy(
        states,
        torch.zeros(9000, 1, device="cuda"),
        bias,
        torch.float32,
        torch.tensor([8600, 8999, 8500], device="cuda"),
    )
    torch.testing.assert_close(total, 3 * torch.tensor(500.0, device="cuda").log())


def rows(lengths: list[int]) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": (ids := torch.randint(3, 96, (n,), generator=generator)), "labels": ids} for n in lengths]


def padded(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    ids = [sample["input_ids"] for sample in samples]
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "attention_mask": torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        "labels": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-100),
    }


def trainer(folder: Path, data: Any, **options: Any) -> Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "logging_steps": 5,
        "report_to": [],
        "disable_tqdm": True,
        "bf16": True,
    }
    collate = options.pop("data_collator", None)
    args = TrainingArguments(str(folder), **{**settings, **options})
    return Trainer(llama(attention_dropout=0.1), args, train_dataset=data, data_collator=collate)


@pytest.mark.parametrize("varies", [False, True])
def test_a_resumed_run_ends_with_the_same_bits(varies: bool, tmp_path: Path) -> None:
    lengths = [8 + (number * 7) % 23 for number in range(64)] if varies else [16] * 64
    options: dict[str, Any] = {"acceleration": "max", "data_collator": padded if varies else None}
    torch.compiler.reset()
    whole = trainer(tmp_path / "whole", rows(lengths), max_steps=12, save_strategy="steps", save_steps=5, **options)
    whole.train()
    used = ["blocks", "logits", "clip"]
    assert told(tmp_path / "whole")["used"] == ([*used, "padding"] if varies else used)
    torch.compiler.reset()
    again = trainer(tmp_path / "again", rows(lengths), max_steps=12, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert same(weights(again.model), weights(whole.model))
    saved = json.loads((tmp_path / "whole" / "checkpoint-5" / "training_state.json").read_text(encoding="utf-8"))
    assert saved["acceleration"]["on"]["device"] == torch.cuda.get_device_name()


def test_long_texts_resume_to_the_bit_with_deterministic_kernels(tmp_path: Path) -> None:
    """Attention adds up in no fixed order from a few hundred words on, and says so where nobody forbids it."""
    options: dict[str, Any] = {"acceleration": "max", "max_steps": 6, "full_determinism": True}
    data = rows([512] * 48)
    try:
        torch.compiler.reset()
        whole = trainer(tmp_path / "whole", data, save_strategy="steps", save_steps=3, **options)
        whole.train()
        assert told(tmp_path / "whole")["used"] == ["blocks", "logits", "clip"]
        assert told(tmp_path / "whole")["repeats"] is True
        torch.compiler.reset()
        again = trainer(tmp_path / "again", data, **options)
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
        assert same(weights(again.model), weights(whole.model))
    finally:
        torch.use_deterministic_algorithms(False)


def test_texts_of_any_length_are_compiled_for_once(tmp_path: Path) -> None:
    torch.compiler.reset()
    seen: list[int] = []

    from trainwright import TrainerCallback

    class Count(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(compilations())

    lengths = [2 + (number * 37) % 61 for number in range(200)]
    run = trainer(tmp_path, rows(lengths), max_steps=50, acceleration="max", data_collator=padded, eval_strategy="no")
    run.add_callback(Count())
    run.train()
    assert seen[-1] == seen[20 - 1], seen


def test_clipping_in_the_update_is_clipping(tmp_path: Path) -> None:
    found = []
    for wanted in ("off", ["clip"]):
        run = trainer(
            tmp_path / str(wanted),
            rows([16] * 64),
            max_steps=6,
            acceleration=wanted,
            max_grad_norm=0.05,
            learning_rate=1e-3,
        )
        run.train()
        found.append(
            (weights(run.model), [entry["grad_norm"] for entry in run.state.log_history if "grad_norm" in entry])
        )
    (plain, norms), (fast, other_norms) = found
    assert norms == pytest.approx(other_norms, rel=2e-2)
    for name, one in plain.items():
        torch.testing.assert_close(fast[name], one, rtol=1e-3, atol=2e-4)


def test_a_step_that_is_not_finite_reaches_no_weight(tmp_path: Path) -> None:
    run = trainer(tmp_path, rows([16] * 8), max_steps=2, acceleration=["clip"], max_nonfinite_steps=None)
    network: Any = run.model
    with torch.no_grad():
        network.lm_head.weight[0, 0] = float("inf")
    before = weights(run.model)
    run.train()
    assert same(weights(run.model), {name: one.to("cuda") for name, one in before.items()})
