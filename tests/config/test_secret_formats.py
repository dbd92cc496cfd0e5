"""Tokens of real services are hidden wherever people put them; what people must be able to read is not."""

from __future__ import annotations

import json
import random
import re
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.token_formats import ALNUM, FORMATS, Format, body
from trainwright.config.secrets import is_secret_name, masked_command, redacted, redacted_values

EACH = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.service)
seeds = st.integers(0, 2**32)


def left_of(token: str, shown: object) -> list[str]:
    """Return the parts of ``token`` that can still be read."""
    text = str(shown)
    parts = [*re.findall(r"[A-Za-z0-9]{12,}", token), token, quote(token, safe="")]
    return [
        part
        for part in parts
        if part in text and part not in ("IncomingWebhook", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9")
    ]


def test_there_are_more_than_sixty_formats() -> None:
    assert len({form.service for form in FORMATS}) > 60


@EACH
@settings(max_examples=3)
@given(seed=seeds)
def test_a_token_under_its_name_is_hidden(form: Format, seed: int) -> None:
    token, name = form.make(random.Random(seed)), form.name
    dashed, upper = name.replace("_", "-"), name.upper()
    commands = [[f"--{name}", token], [f"--{name}={token}"], [f"{name}={token}"], [f"--{dashed}", token]]
    commands += [
        [f"-{name}", token],
        [f"--model.{name}", token],
        [f"training.{name}={token}"],
        [f"--env={upper}={token}"],
    ]
    for words in commands:
        shown = masked_command(["train.py", *words, "--lr", "1e-3"])
        assert left_of(token, shown) == []
        assert (shown[0], shown[-2:]) == ("train.py", ["--lr", "1e-3"])
    for data in (
        {name: token},
        {"a": [{"options": {name: [token]}}]},
        {upper: token},
        {"credentials": {"value": token}},
    ):
        assert left_of(token, redacted_values(data)) == []
    texts = [f"could not log in with {name}={token} at step 5", json.dumps({name: token}), f"{name}={token}"]
    texts += [f"GET https://example.org/x?page=2&{name}={quote(token, safe='')}&z=3 failed"]
    for text in texts:
        assert left_of(token, redacted(text)) == []
    assert redacted(texts[-1]) == f"GET https://example.org/x?page=2&{name}=***&z=3 failed"


@pytest.mark.parametrize("form", [form for form in FORMATS if form.has_form], ids=lambda form: form.service)
@settings(max_examples=3)
@given(seed=seeds)
def test_a_token_with_a_form_of_its_own_is_hidden_anywhere(form: Format, seed: int) -> None:
    token = form.make(random.Random(seed))
    for words in ([token], ["--note", token], [f"--note={token}"], [f"note:{token}"]):
        assert left_of(token, masked_command(["train.py", *words])) == []
    assert left_of(token, redacted_values({"note": token, "list": [token], "deep": {"a": {"b": f"is {token}."}}})) == []
    for text in (f"before {token} after", f"({token})", f'"{token}"', f"x={token},y=2", json.dumps([token])):
        assert left_of(token, redacted(text)) == []
    assert redacted(f"before {token} after").startswith("before ")
    assert redacted(f"before {token} after").endswith(" after")


@pytest.mark.parametrize(
    "secret",
    [
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPL3KEY",
        "kX9vQ2mZ7pLw4TnB8sRy1DfG6hJc3AeU5oWi0NqK",
        "Zx8Kq2Lm9Pw4Rt7Yv3Bn6Hj1",
        "a7F-9k_Q2xW8vB3nM5cT1zR6yL4pH0sD_jE-gU",
        "r2Xt8Lq5Zw1Bv7Nk3Pm9Jh4Gf6Dc0Sa",
    ],
)
def test_random_words_are_taken_for_secrets(secret: str) -> None:
    assert redacted(f"with {secret} in it") == "with *** in it"
    assert masked_command(["train.py", secret, f"--x={secret}"]) == ["train.py", "***", "--x=***"]


NAMES = """
    --wandb_key --wandb-key --db_pass --mysql-pwd --kaggle_key --webhook --slack_webhook_url --sig --signature
    --pwd --pass --passcode --otp --cookie --session --session_id --sentry_dsn --license_key --encryption_key
    --apikey --apiKey --accessToken --AccountKey --db.password --password --secret --client_secret --auth
    --hf-token --HFTOKEN --credentials --private-key --passphrase --userpwd --signing_key
    --connection_password --jwt --bearer
"""


@pytest.mark.parametrize("name", NAMES.split())
@given(value=st.sampled_from(["kanarienvogel1234567890", "Hunter2!", "a8f3-k2", "https://x.example/y1"]))
@settings(max_examples=2)
def test_options_with_such_names_lose_their_values(name: str, value: str) -> None:
    assert masked_command([name, value, "--lr", "1"]) == [name, "***", "--lr", "1"]
    assert masked_command([f"{name}={value}"]) == [f"{name}=***"]
    assert redacted_values({name.lstrip("-"): value}) == {name.lstrip("-"): "***"}


@pytest.mark.parametrize("name", ["db_pass", "password", "otp", "pwd", "passcode"])
def test_a_password_of_digits_is_one(name: str) -> None:
    assert redacted_values({name: 12345678}) == {name: "***"}
    assert masked_command([f"--{name}", "12345678"]) == [f"--{name}", "***"]


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:geheimnis@db.example.org:5432/runs",
        "mongodb+srv://me:geheimnis@cluster0.example.net/?retryWrites=true",
        "mysql://root:p@geheimnis/word@host/db",
        "redis://:geheimnis@host:6379/0",
        "https://oauth2:geheimnis@gitlab.com/x.git",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=geheimnis+1/2==;EndpointSuffix=core.windows.net",
        "Server=db;User Id=me;Password=geheimnis;Encrypt=True",
        "https://b.s3.amazonaws.com/x?X-Amz-Credential=geheimnis1&X-Amz-Signature=geheimnis2&X-Amz-Expires=900",
        "https://storage.googleapis.com/b/x?X-Goog-Signature=geheimnis12&X-Goog-Expires=900",
        "https://a.blob.core.windows.net/c?sv=2022-11-02&se=2030-01-01&sr=b&sp=r&sig=geheimnis12%3D",
        "curl -H 'Authorization: Bearer geheimnis12' https://example.org",
        "X-Api-Key: geheimnis",
        '{"api_key": "geheimnis", "n": 3}',
        "{'password': 'geheimnis'}",
        "login failed: password: geheimnis",
        "set-cookie: session=geheimnis12; path=/",
    ],
)
def test_secrets_inside_texts(text: str) -> None:
    assert "geheimnis" not in redacted(text)
    assert "geheimnis" not in str(masked_command(["train.py", text, f"--data={text}"]))
    assert "geheimnis" not in str(redacted_values({"url": text}))
    # What is not secret stays: the host, the other parameters.
    for part in ("example", "amazonaws", "900", "AccountName=a", '"n": 3', "login failed"):
        assert (part in text) == (part in redacted(text))


COMMIT, SHA256 = (
    "1b2c3d4e5f60718293a4b5c6d7e8f9012345abcd",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
)

READABLE = {
    "commit": COMMIT,
    "revision": COMMIT,
    "sha256": SHA256,
    "file": f"sha256:{SHA256}",
    "md5": "d41d8cd98f00b204e9800998ecf8427e",
    "fingerprint": "2f3a9c41d07be685",
    "run_id": "6f1ed002-ab5f-42a3-9f3e-6c1d2e3f4a5b",
    "mlflow_run": "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    "model": "bartowski/Meta-Llama-3.1-8B-Instruct-AWQ-INT4-GGUF",
    "architecture": "Qwen3OmniMoeForConditionalGeneration",
    "other_class": "DataCollatorForSeq2Seq",
    "output_dir": "/mnt/data/runs/2024-01-01T12-00-00/exp_lr1e-4_bs32_wd0.01_s1_v2_fp16_A100x8",
    "run_name": "exp_lr1e-4_bs32_wd0.01_s1_v2_fp16_A100x8",
    "data": "/home/me/.cache/huggingface/hub/models--a--b/snapshots/" + COMMIT,
    "drive": "/content/drive/1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms/x.csv",
    "learning_rate": "1e-4",
    "platform": "Linux-6.8.0-45-generic-x86_64-with-glibc2.39",
    "torch": "2.13.0+cu130",
    "url": "https://huggingface.co/org/model/resolve/main/model-00001-of-00002.safetensors?download=true",
    "tokenizer_name": "bert-base-uncased",
    "pad_token": "<pad>",
    "image_token": "<image>",
    "max_token_length": "512",
    "key_value_heads": "8",
    "num_key_value_heads": "all",
    "keyboard": "qwerty1",
    "passes": "two2",
    "compass": "north1",
    "bypass_transformer": "a1",
    "author": "Ada Lovelace 2",
    "authors": "Ada, Bob3",
    "monkey": "capuchin1",
    "label_key": "label_1",
    "sort_key": "length2",
    "distill_output_keys": "logits1",
    "metric_for_best_model": "eval_f1",
    "key": "accuracy",
    "session": "training",
    "signature_columns": "x1",
    "license": "apache-2.0",
    "secretary": "none",
    "assignment": "a1",
    "design": "v2",
    "significance": "p05",
    "cookiecutter": "v2",
    "dataloader_pin_memory": "yes1",
    "tokens_per_second": "1.5e3",
    "hub_private_repo": "true",
    "use_auth_token": "True",
}


@pytest.mark.parametrize("name", READABLE)
def test_what_people_must_read_stays(name: str) -> None:
    value = READABLE[name]
    assert redacted_values({name: value, "a": [{name: value}]}) == {name: value, "a": [{name: value}]}
    assert masked_command([f"--{name}", value, f"{name}={value}"]) == [f"--{name}", value, f"{name}={value}"]
    assert redacted(f"with {name}={value} and {value}") == f"with {name}={value} and {value}"


@pytest.mark.parametrize(
    "text",
    [
        "after the backward pass: unset it",
        "unknown token: <extra_id_0>",
        "KeyError: 'loss'",
        "write section.key=value, or --section.key value",
        "Basic configuration of the run",
        "the bearer authorization for remote files",
        "https://example.org:8080/a@b",
        "see git@github.com:me/repo.git",
        "http://127.0.0.1:29500/x?key=loss&page=2",
        f"checkpoint-500 of {COMMIT[:12]} ({SHA256})",
    ],
)
def test_ordinary_sentences_stay(text: str) -> None:
    assert redacted(text) == text


def test_a_folder_or_a_word_in_a_variable_with_such_a_name_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PWD", "/home/me/project")
    monkeypatch.setenv("SERVICE_KEY", str(tmp_path))
    monkeypatch.setenv("DESKTOP_SESSION", "gnome-xorg")
    text = f"/home/me/project/runs in {tmp_path} on gnome-xorg"
    assert redacted(text) == text


@given(st.randoms(use_true_random=False), st.sampled_from(["--wandb_key", "--db_pass", "--kaggle_key"]))
def test_the_values_before_and_after_are_not_touched(rng: random.Random, name: str) -> None:
    words = ["train.py", "--lr", "1e-4", name, body(ALNUM, 30)(rng), "--seed", "3", "data/x.csv"]
    shown = masked_command(words)
    assert [*shown[:4], *shown[5:]] == [*words[:4], *words[5:]]


@pytest.mark.slow
def test_long_texts_are_read_in_linear_time() -> None:
    """Each of these hung or took minutes with one pattern or another."""
    for text in (
        "://a:b" * 10_000,
        "a=" * 40_000,
        "-----BEGIN PRIVATE KEY-----" * 4_000,
        "x" * 200_000,
        "key=1 " * 20_000,
    ):
        redacted(text)


def test_no_setting_of_the_library_is_taken_for_a_secret() -> None:
    from trainwright import TrainingArguments

    names = {name for name in TrainingArguments.__dataclass_fields__ if is_secret_name(name)}
    assert names == {"hub_token", "push_to_hub_token"}
