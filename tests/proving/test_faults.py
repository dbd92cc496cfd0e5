"""Planted mistakes are found in the rows that they concern, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.models import Plain, classification_rows, token_rows
from tests.proving.faulty import (
    CUT,
    FAULTS,
    CountingSampler,
    DiesAmongOthers,
    DividesByProcesses,
    Mixing,
    Noisy,
    OwnLoaderTrainer,
    Shifting,
    Weighted,
)
from trainwright import Trainer
from trainwright.proving import prove

#: Enough on a busy machine, too.
BUDGET = 600.0


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_caught_and_named_in_the_right_rows(name: str, make_args: Callable[..., Any]) -> None:
    fault = FAULTS[name]
    torch.manual_seed(0)
    args = make_args(per_device_train_batch_size=6)
    proof = fault.kind(fault.model(), args, train_dataset=fault.data()).prove(BUDGET, seed=5)
    assert not proof.holds
    failed = {row.name if not row.name.startswith("resume") else "resume after" for row in proof.failures}
    assert failed == fault.fails, str(proof)
    parameters = {name for name, _ in fault.model().named_parameters()}
    for row in proof.failures:
        assert fault.reason in (row.why or ""), row
        assert row.worst in parameters | {"the loss"}
        assert row.bounds is not None
        found = max(value for value in (row.loss, row.gradient, row.weights) if value is not None)
        assert found > 1e-4, row
    text = str(proof)
    assert "FAIL" in text
    assert fault.reason in text


def test_a_loader_that_forgets_where_it_was_cannot_be_resumed(make_args: Callable[..., Any]) -> None:
    proof = OwnLoaderTrainer(Plain(), make_args(), train_dataset=classification_rows()).prove(BUDGET)
    (row,) = proof.failures
    assert row.name.startswith("resume after")
    assert "did not repeat itself" in (row.why or "")


def test_a_sampler_that_counts_its_passes_is_resumed_exactly(make_args: Callable[..., Any]) -> None:
    loader: Any = DataLoader(classification_rows(), batch_size=4, sampler=CountingSampler(16))  # type: ignore[bad-argument-type]
    proof = Trainer(Plain(), make_args(), train_dataset=loader).prove(BUDGET)
    assert proof["resume after"].outcome == "pass", str(proof)
    assert loader.sampler.number == 0


def test_batchnorm_is_a_layer_in_which_samples_meet(make_args: Callable[..., Any]) -> None:
    model = Mixing(nn.BatchNorm1d(8))
    proof = Trainer(model, make_args(per_device_train_batch_size=6), train_dataset=classification_rows()).prove(BUDGET)
    assert {row.name for row in proof.failures} == CUT
    said = proof["the batch in 2 pieces"].why or ""
    assert "between (BatchNorm1d): it takes its statistics from the samples that run together" in said
    # torch itself refuses single samples.
    assert "expects more than one value per channel" in (proof["micro_batch=1"].why or "")


def test_a_mean_over_shifted_targets_is_named_and_mended_as_it_says(
    make_args: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "process_rows", lambda *args, **kwargs: [])
    args = make_args(per_device_train_batch_size=6)
    proof = Trainer(Shifting(), args, train_dataset=token_rows()).prove(BUDGET)
    assert {row.name for row in proof.failures} == {name for name in CUT if "processes" not in name}
    for row in proof.failures:
        assert "mean over shifted targets" in (row.why or ""), row
    monkeypatch.setattr(Shifting, "shifts_labels", True, raising=False)
    assert Trainer(Shifting(), args, train_dataset=token_rows()).prove(BUDGET).holds


def test_targets_may_be_counted_by_a_sum_in_float32(
    make_args: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "process_rows", lambda *args, **kwargs: [])
    proof = Weighted(Plain(), make_args(per_device_train_batch_size=6), train_dataset=classification_rows()).prove(
        BUDGET
    )
    assert proof.holds, str(proof)
    bounds = proof["the batch in 2 pieces"].bounds
    assert bounds is not None
    assert bounds.gradient == 1e-6


@pytest.mark.slow
def test_a_loss_divided_by_the_number_of_processes(make_args: Callable[..., Any]) -> None:
    proof = DividesByProcesses(Plain(), make_args(), train_dataset=classification_rows()).prove(BUDGET)
    assert {row.name for row in proof.failures} == {"2 processes (ddp)", "2 processes (fsdp)"}
    for row in proof.failures:
        assert "0.5 times what it should be: the loss is divided by the number of processes" in (row.why or "")


@pytest.mark.slow
def test_a_process_that_dies_is_a_failure_and_nobody_waits_for_it(make_args: Callable[..., Any]) -> None:
    proof = DiesAmongOthers(Plain(), make_args(), train_dataset=classification_rows()).prove(BUDGET)
    assert {row.name for row in proof.failures} == {"2 processes (ddp)", "2 processes (fsdp)"}
    assert all("process 1 ended without a word (exit code 9)" in (row.why or "") for row in proof.failures)
    assert proof.seconds < BUDGET


def test_where_the_loss_draws_random_numbers_pieces_are_not_compared(make_args: Callable[..., Any]) -> None:
    proof = Trainer(Noisy(), make_args(), train_dataset=classification_rows()).prove(BUDGET)
    rows = {row.name: row for row in proof.rows}
    assert proof.holds
    assert "random numbers besides dropout" in (rows["the same steps, another seed"].why or "")
    assert all(rows[name].outcome == "not tried" for name in CUT)
    # What is drawn is in a checkpoint.
    assert proof["resume after"].outcome == "pass"
