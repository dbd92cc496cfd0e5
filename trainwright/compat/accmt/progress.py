"""tqdm's bar, in the first process only."""

from __future__ import annotations

from typing import Any

from trainwright.config.backends import rank_from_environment

try:
    from tqdm.auto import tqdm as _tqdm
except ImportError as error:
    raise ImportError("from trainwright.compat.accmt import tqdm needs the package tqdm: pip install tqdm") from error


class tqdm(_tqdm):
    """As tqdm's own; ``{rate_s}`` in ``bar_format`` is the seconds that one round takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["disable"] = bool(kwargs.get("disable")) or rank_from_environment().rank != 0
        super().__init__(*args, **kwargs)

    @property
    def format_dict(self) -> dict[str, Any]:
        values = super().format_dict
        rate = values.get("rate")
        return {**values, "rate_s": f"{1 / rate:.3f} s" if rate else "? s"}
