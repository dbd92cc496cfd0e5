"""Names under which secrets are kept: options, keys, environment variables."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Secrecy(Enum):
    """The certainty that a name gives of what is under it."""

    NONE = 0
    #: A secret unless it is an ordinary word or a number: ``key: accuracy`` is a setting.
    LIKELY = 1
    #: A secret unless it is a number or a special token: ``max_token: 512``, ``image_token: <image>``.
    SURE = 2
    #: A secret whatever it looks like: ``password: 1234``.
    ALWAYS = 3


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ALWAYS = _set("password passwords passwd passphrase passcode pwd pw pswd secret secrets otp totp cred mnemonic")
_ALWAYS_ENDINGS = ("password", "passwd", "passphrase", "passcode", "pwd", "secret", "userpass", "dbpass", "sshpass")
_ALWAYS_ENDINGS += ("pgpass", "creds", "credential", "credentials")
_SURE = _set("webhook cookie cookies dsn jwt auth oauth authorization bearer csrf")
_SURE_ENDINGS = ("token", "apikey", "accesskey", "secretkey", "privatekey", "accountkey", "sessionid", "authkey")
_LIKELY = _set("key session sig signature pat sas sessid sid nonce")
#: What may follow such a word: a webhook's address is as secret as the webhook.
_TAILS = _set("url uri value string str text header id base64 b64 hex")
#: Tokens of text, which are no secrets.
_TEXT_TOKENS = _set(
    "pad eos bos unk sep cls mask special image audio video vision start end begin first last next new max min num per "
    "system user assistant blank text stop prefix suffix middle sub word extra additional bot"
)
#: Keys of data, which are no secrets either.
_DATA_KEYS = _set(
    "primary foreign sort sorting group grouping metric label labels text image images audio video input inputs output "
    "outputs target source column field feature features dict state cache best monitor data dataset sequence index "
    "partition public join merge dedup order sample batch attention att query experiment run task loss score param "
    "config layer module prefix split time date name map json yaml option hot answer question context prompt response "
    "message role content reward mask class category"
)
_KEYS = _set("api access secret private encryption signing license ssh auth account")


@lru_cache(maxsize=4096)
def secrecy(name: str) -> Secrecy:
    """Return how likely what is kept under ``name`` is a secret.

    >>> [secrecy(name).name for name in ("db_pass", "HF_TOKEN", "key", "pad_token", "num_key_value_heads", "compass")]
    ['ALWAYS', 'SURE', 'LIKELY', 'NONE', 'NONE', 'NONE']
    """
    words = _words(name)
    if any(word in _ALWAYS or word.endswith(_ALWAYS_ENDINGS) for word in words) or words[-1:] == ["pass"]:
        return Secrecy.ALWAYS
    # training.key is a key, and not one for training.
    words = _words(name.rpartition(".")[2]) or words
    while len(words) > 1 and words[-1] in _TAILS and words[-2] != "key":
        # Not behind "key": the id of a key is its public half. Not behind "token": ids of tokens are numbers.
        if words[-2] == "token":
            return Secrecy.NONE if words[-1] == "id" else Secrecy.SURE
        words.pop()
    if not words:
        return Secrecy.NONE
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token" and before in _TEXT_TOKENS:
        return Secrecy.NONE
    if last in _SURE or last.endswith(_SURE_ENDINGS):
        return Secrecy.SURE
    if last in ("keys", "tokens"):
        return Secrecy.SURE if before in _KEYS else Secrecy.NONE
    if last == "key" and before:
        return Secrecy.NONE if before in _DATA_KEYS else Secrecy.SURE
    return Secrecy.LIKELY if last in _LIKELY else Secrecy.NONE


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]
