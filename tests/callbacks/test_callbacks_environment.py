"""Facts about a run: what must be in them, and what must never be."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.callbacks.environment import environment_facts, masked_command

CANARY = "kanarienvogel1234567890"

secret_options = st.sampled_from(
    ["--hub_token", "--token", "--api-key", "--api_key", "--password", "--aws-secret", "-token", "--HF_TOKEN", "--auth"]
)
harmless_words = st.lists(st.sampled_from(["train.py", "--epochs", "3", "--lr=1e-4", "data/x.json", "-v"]), max_size=4)


@given(harmless_words, secret_options, st.booleans(), harmless_words)
def test_values_of_secret_options_are_masked(before: list[str], option: str, joined: bool, after: list[str]) -> None:
    given_words = [f"{option}={CANARY}"] if joined else [option, CANARY]
    shown = masked_command([*before, *given_words, *after])
    assert CANARY not in " ".join(shown)
    assert shown[: len(before)] == before
    assert shown[len(before) + len(given_words) :] == after


@given(
    st.sampled_from(["hf_", "ghp_", "sk-", "gho_"]),
    st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=12, max_size=40),
    st.sampled_from(["{}", "--model={}", "note:{}", "a/{}"]),
)
def test_values_that_look_like_secrets_are_masked(prefix: str, rest: str, place: str) -> None:
    secret = prefix + rest
    assert secret not in " ".join(masked_command(["train.py", place.format(secret)]))


def test_passwords_in_addresses_are_masked() -> None:
    shown = masked_command(["train.py", f"--data=https://me:{CANARY}@example.org/x", f"s3://me:{CANARY}@bucket"])
    assert CANARY not in " ".join(shown)
    assert "example.org/x" in shown[1]


def test_env_json_of_a_run(
    make_args: Callable[..., TrainingArguments], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--hub_token", CANARY, f"--api_key={CANARY}"])
    monkeypatch.setenv("HF_TOKEN", CANARY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    args = make_args(max_steps=2, hub_token=CANARY, report_to=["tensorboard"], save_strategy="steps", save_steps=2)
    Trainer(Plain(), args, train_dataset=classification_rows(16)).train()
    folder = Path(str(args.output_dir))
    facts = json.loads((folder / "env.json").read_text())
    assert set(facts) >= {"command", "python", "platform", "packages", "git", "hardware", "model", "dataset"}
    assert facts["command"] == ["train.py", "--hub_token", "***", "--api_key=***"]
    assert {"torch", "numpy"} <= set(facts["packages"])
    assert facts["model"] == {"class": "Plain", "name": None, "revision": None, "parameters": 83}
    assert facts["dataset"]["rows"] == 16
    leaks = [path for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert leaks == []


def test_facts_are_json() -> None:
    assert json.loads(json.dumps(environment_facts()))["model"] is None


@pytest.mark.parametrize("words", [[f"--env=HF_TOKEN={CANARY}"], ["--password", f"-{CANARY}"]])
def test_secrets_in_unusual_places_are_masked(words: list[str]) -> None:
    assert CANARY not in " ".join(masked_command(words))
