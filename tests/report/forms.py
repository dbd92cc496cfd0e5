"""What commands print with ``--json``, held against what the documents promise."""

from __future__ import annotations

from typing import Any, NotRequired, get_origin, get_type_hints

from pydantic import create_model

from trainwright.report.json_forms import FORMS


def checked(command: str, value: Any) -> None:
    """Hold what was printed against what the documents say."""
    hints: dict[str, Any] = get_type_hints(FORMS[command])
    # A form within a form is checked on its own.
    hints = {name: list[Any] if "Compared" in str(kind) else kind for name, kind in hints.items()}
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in hints.items() if name in value}
    model = create_model(FORMS[command].__name__, **fields)
    kinds = get_type_hints(FORMS[command], include_extras=True)
    assert {name for name, kind in kinds.items() if get_origin(kind) is not NotRequired} <= set(value) <= set(hints)
    model.model_validate(value)
