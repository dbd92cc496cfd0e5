"""``accelerator_config``: what was given, with transformers' defaults for the rest."""

from __future__ import annotations

from typing import Any

#: What accelerate is given by transformers where nothing is said.
DEFAULTS: dict[str, Any] = {
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": True,
    "non_blocking": False,
    "gradient_accumulation_kwargs": None,
    "use_configured_state": False,
}


class AcceleratorOptions(dict[str, Any]):
    """Options under transformers' names; as a dict it holds those that were given, and only those are stored.

    >>> options = AcceleratorOptions(split_batches=True)
    >>> options.split_batches, options.even_batches, len(options)
    (True, True, 1)
    """

    def __getattr__(self, name: str) -> Any:
        if name not in DEFAULTS:
            raise AttributeError(f"accelerator_config has no {name!r}; it has {', '.join(DEFAULTS)}.")
        return self.get(name, DEFAULTS[name])

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def to_dict(self) -> dict[str, Any]:
        """All options, those that were not given too."""
        return {**DEFAULTS, **self}
