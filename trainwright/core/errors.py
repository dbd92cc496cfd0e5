"""Errors that speak to users."""

from __future__ import annotations


class MissingMetricError(KeyError, ValueError):
    """The metric that decides which model is best is not among those an evaluation produced."""

    def __init__(self, wanted: str, available: list[str]) -> None:
        self.message = (
            f"metric_for_best_model is {wanted!r}, but evaluation produces only: {', '.join(sorted(available))}. "
            "Set metric_for_best_model to one of these, or return it from compute_metrics."
        )
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message
