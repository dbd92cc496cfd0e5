"""Errors that speak to users."""

from __future__ import annotations

from trainwright.config.origin import class_if_imported


class MissingMetricError(KeyError, ValueError):
    """The metric that decides which model is best is not among those an evaluation produced."""

    def __init__(self, wanted: str, available: list[str]) -> None:
        self.wanted, self.available = wanted, available
        self.message = (
            f"metric_for_best_model is {wanted!r}, but evaluation produces only: {', '.join(sorted(available))}. "
            "Set metric_for_best_model to one of these, or return it from compute_metrics."
        )
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class Preempted(SystemExit):
    """Training stopped early because it was asked to (a signal, ``max_hours``); everything is saved.

    An uncaught one ends the process with ``code``, 75 unless ``preempted_exit_code`` says otherwise: schedulers take it
    for "try again later". Running the same command again with ``resume="auto"`` goes on exactly where it stopped.
    """

    def __init__(self, reason: str, code: int = 75, checkpoint: str | None = None) -> None:
        super().__init__(code)
        self.reason, self.checkpoint = reason, checkpoint

    def __str__(self) -> str:
        saved = f"{self.checkpoint} holds everything" if self.checkpoint else "nothing was saved"
        return f"Training was stopped by {self.reason}; {saved}."


class NotSavedError(RuntimeError):
    """Training came to its end, or was stopped, but something that it should have saved is not on disk.

    Raised by ``train()`` after everything else is done. The model is still in memory: ``trainer.save_model(folder)``.
    """

    def __init__(self, unsaved: dict[str, str], instead: str | None = None, how: str = "came to its end") -> None:
        self.unsaved, self.instead = dict(unsaved), instead
        what = "; ".join(f"{name} ({reason})" for name, reason in unsaved.items())
        kept = f" The weights as they are now are in {instead}." if instead else ""
        self.summary = f"Training {how}, but this could not be saved: {what}.{kept}"
        super().__init__(
            f"{self.summary} The model is still in memory: trainer.save_model(folder) writes it elsewhere."
        )


class RunTakenOver(RuntimeError):
    """Another training has taken the run directory over: this one writes nothing more there, and ends."""

    def __init__(self, folder: str, who: str) -> None:
        self.folder, self.who = folder, who
        super().__init__(
            f"{folder} was taken over by {who}: this training ends without a save, and what it did since its last "
            "checkpoint is lost. Train in another output_dir to have both."
        )


class NotMetricsError(ValueError):
    """``compute_metrics`` gave something else than numbers by name."""

    def __init__(self, function: str, found: object) -> None:
        super().__init__(
            f"{function} returned {type(found).__name__} ({str(found)[:60]}), and must return a dict of numbers by "
            "name, as in return {'accuracy': value}."
        )


class FirstStepError(ValueError):
    """Why a training failed in its first step, and what to do; what was raised there is its ``__cause__``."""


class StopRequested(BaseException):
    """Raised out of an evaluation, or a wait for data, where somebody asks to stop; the loop ends with it."""

    def __init__(self, reason: str, *, by_keyboard: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.by_keyboard = reason, by_keyboard


class NonFiniteError(ArithmeticError):
    """Too many steps in a row had a loss or gradient that is NaN or infinite."""

    def __init__(self, step: int, in_a_row: int) -> None:
        super().__init__(
            f"{in_a_row} steps in a row, the last of them step {step}, had a loss or gradient that is NaN or infinite. "
            "None of them changed the weights; events.jsonl names their samples. Look at these, lower the learning "
            "rate, or set max_nonfinite_steps (how many to tolerate) or rewind_on_nonfinite=True."
        )


class DivergedError(RuntimeError):
    """Processes that should have the same weights do not (``check_weights_every``)."""


class GivenUp(BaseException):
    """Raised to leave a trial of a hyperparameter search that goes nowhere: nothing went wrong, nothing is saved."""


_TYPES_OF_LOST_PEERS = ("DistBackendError", "DistNetworkError")
_GLOOS_WORDS = ("onnection closed by peer", "onnection reset by peer", "gloo/transport")


def lost_a_peer(error: BaseException) -> bool:
    """Whether another process of the run is gone, and this error only says so.

    >>> lost_a_peer(RuntimeError("gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer."))
    True
    """
    # NCCL's and the store's errors have types of torch's, which is not imported here.
    if any(isinstance(error, class_if_imported("torch.distributed", name)) for name in _TYPES_OF_LOST_PEERS):
        return True
    # gloo's exceptions arrive as bare RuntimeErrors (also in torch 2.13): nothing but their text tells.
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _GLOOS_WORDS)
