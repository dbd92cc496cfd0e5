"""What is hidden, and what must stay readable."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.config.secrets import is_secret_name, masked_command, redacted, redacted_values

CANARY = "kanarienvogel1234567890"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "GOOGLE_CREDENTIALS",
        "BASIC_AUTH",
        "myToken",
    ],
)
def test_values_of_secret_variables_vanish(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, CANARY)
    assert redacted(f"before {CANARY}, {CANARY}after") == "before ***, ***after"
    assert redacted_values({"a": [CANARY, {"b": f"x{CANARY}"}], CANARY: 1}) == {"a": ["***", {"b": "x***"}], "***": 1}


def test_short_values_and_other_variables_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "true")
    monkeypatch.setenv("TOKENIZER_NAME", "bert-base-cased")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ada Lovelace")
    text = "true bert-base-cased by Ada Lovelace"
    assert redacted(text) == text


@pytest.mark.parametrize("value", ['quo"ted\\secret', "geheimnis-über-alles", "two\nlines of it"])
def test_secrets_inside_json_text(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("API_SECRET", value)
    assert json.loads(redacted(json.dumps({"note": f"is {value}"}))) == {"note": "is ***"}


@pytest.mark.parametrize(
    "secret",
    [
        "hf_AbCdEfGhIjKlMnOpQrSt",
        "sk-proj-abcdefgh12345678",
        "ghp_abcdefgh12345678",
        "gho_abcdefgh12345678",
        "github_pat_abcdefgh12345678",
        "glpat-abcdefgh_12345",
        "xoxb-12345678-abcdefgh",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_known_forms_vanish(secret: str) -> None:
    assert redacted(f"a {secret} b") == "a *** b"


def test_addresses() -> None:
    assert redacted("https://me:pass@host/x?token=abc&page=2") == "https://***@host/x?token=***&page=2"
    assert redacted("redis://:pass@host") == "redis://***@host"
    assert redacted("see https://example.org:8080/a@b") == "see https://example.org:8080/a@b"


@pytest.mark.parametrize(
    "text",
    ["step 50/200  loss 0.31  lr 5e-05", "hf_transfer", "task-specific-heads", "checkpoint-500", '{"a": 12345678.5}'],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redacted(text) == text


def test_keys_that_look_secret_lose_their_text() -> None:
    data = {"api_key": "short", "nested": {"password": ["a", "b"], "auth": None}, "use_auth_token": True, "n": 3}
    shown = {"api_key": "***", "nested": {"password": ["***", "***"], "auth": None}, "use_auth_token": True, "n": 3}
    assert redacted_values(data) == shown


@pytest.mark.parametrize(
    "name", ["tokenizer", "max_tokens_per_batch", "include_num_input_tokens_seen", "pad_token", "token_type", "authors"]
)
def test_words_about_text_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)
    assert redacted_values({name: "all"}) == {name: "all"}


def test_commands_keep_what_is_harmless() -> None:
    words = ["train.py", "--include_num_input_tokens_seen", "all", "--tokenizer_name", "bert", "--lr", "-1e-3"]
    assert masked_command(words) == words


PLAIN = "plain secret word"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"hub_token": PLAIN, "n": 3}),
        json.dumps(json.dumps({"hub_token": PLAIN, "n": 3})),
        json.dumps({"hub_token": f'a"b {PLAIN}\\', "n": 3}),
        json.dumps(json.dumps({"hub_token": f'a"b {PLAIN}\\', "n": 3})),
        json.dumps({"hub_token": ["a", PLAIN], "n": 3}),
        json.dumps({"hub_token": {"a": PLAIN}, "n": 3}),
        f"{{'hub_token': 'it''s {PLAIN}', \"n\": 3}}",
        f"with api_key='{PLAIN}', n: 3",
        f"n: 3, cut off in hub_token='{PLAIN}",
    ],
)
def test_a_secret_of_several_words_is_hidden_to_its_closing_quote(text: str) -> None:
    for shown in (
        redacted(text),
        redacted(f"training={text}"),
        *masked_command(["train.py", text, f"training={text}"]),
    ):
        assert not any(word in shown for word in PLAIN.split()), shown
    assert "3" in redacted(text)
    assert "3" in masked_command([f"training={text}"])[0]


@pytest.mark.parametrize("pair", [f"hub_token: {PLAIN}", f"hub_token: [a b, {PLAIN}]", f"hub_token: 'one\n{PLAIN}'"])
def test_a_secret_of_several_words_in_braces_is_hidden(pair: str) -> None:
    shown = masked_command(["train", f"training={{{pair}, lr: 3}}"])
    assert not any(word in shown[1] for word in PLAIN.split())
    assert shown[1].startswith("training={hub_token: ")
    assert shown[1].endswith(", lr: 3}")


def test_a_secret_that_looks_like_an_option_is_hidden() -> None:
    assert masked_command(["--training.hub_token", "--plain", "--lr", "3"]) == [
        "--training.hub_token", "***", "--lr", "3",
    ]  # fmt: skip
    assert "hunter2" not in masked_command(["--token", "--password", "hunter2"])
    assert masked_command(["--use_auth_token", "--lr", "3"]) == ["--use_auth_token", "--lr", "3"]


@pytest.mark.parametrize("name", ["CREDS", "AWS_CREDS", "awscreds", "GIT_CRED", "DB_PW", "PGPASS", "my.credentials"])
def test_short_names_of_secrets_are_known(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "user1:zq9Kx2Lm")
    assert redacted("x user1:zq9Kx2Lm y") == "x *** y"
    assert redacted_values({name: "abc"}) == {name: "***"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\\n"])
def test_each_line_of_a_secret_of_many_lines_is_hidden(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setenv("SIGNING_KEY", end.join(["--- mine ---", "line1secret", "  line2secret", "end"]))
    assert redacted("at line2secret, then line1secret in the end") == "at ***, then *** in the end"


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc xyz", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=4), inner, max_size=3),
)


@given(plain)
def test_plain_data_without_secrets_stays_as_it_is(data: object) -> None:
    assert redacted_values(data) == data
