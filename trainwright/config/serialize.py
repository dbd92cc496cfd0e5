"""Arguments as dicts, JSON and text. Secrets never appear in any of them."""

import json
import sys
from enum import Enum
from pathlib import PurePath
from typing import Any

from trainwright.config.accelerator_options import AcceleratorOptions
from trainwright.config.fields import AllFields
from trainwright.config.removal import RULES
from trainwright.config.secrets import redacted_values


def _has_placeholder(name: str) -> bool:
    """transformers shows ``<HUB_TOKEN>``, set or not."""
    return name.endswith("_token") or name == "token"


def _hidden(name: str) -> bool:
    """Bookkeeping, and dropped names: their values live under the names that replaced them."""
    return name == "_resolution" or name in RULES


def _plain(value: Any) -> Any:
    """The JSON form of one value; what has none becomes its text."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, AcceleratorOptions) and not value:
        # Where nothing was given, nothing is stored.
        return None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, PurePath)):
        return str(value)
    if callable(getattr(value, "to_dict", None)):
        return _plain(value.to_dict())
    # torch.float32 and the like are written as "float32", the way transformers writes them.
    text = str(value)
    return text.removeprefix("torch.") if isinstance(value, getattr(sys.modules.get("torch"), "dtype", ())) else text


class Serialization(AllFields):
    """How arguments are written down."""

    def to_dict(self) -> dict[str, Any]:
        """Every argument with JSON values; names ending in ``_token`` show a placeholder, set or not.

        Anything else that looks like a secret, in nested options too, shows as ``***``.
        """
        names = [name for name, field in self.__dataclass_fields__.items() if field.init and not _hidden(name)]
        shown = {n: f"<{n.upper()}>" if _has_placeholder(n) else _plain(getattr(self, n)) for n in names}
        return redacted_values(shown)

    def to_json_string(self) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Only scalars, for trackers that record hyper-parameters; everything else becomes text."""
        sizes = {
            "train_batch_size": self.per_device_train_batch_size,
            "eval_batch_size": self.per_device_eval_batch_size,
        }
        items = {**self.to_dict(), **sizes}.items()
        return {name: value if type(value) in (bool, int, float, str) else str(value) for name, value in items}

    def __str__(self) -> str:
        lines = "".join(f"{name}={value!r},\n" for name, value in sorted(self.to_dict().items()))
        return f"{type(self).__name__}(\n{lines})"

    def __repr__(self) -> str:
        return str(self)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        # @dataclass writes a repr of every field, secrets included, into subclasses that have none of their own.
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Serialization.__repr__
