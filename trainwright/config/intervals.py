"""When a run logs, evaluates and saves: ours (``checkpoint_every``) and Hugging Face's (``save_strategy``) as one.

Where ours is given it takes over. The Hugging Face arguments are then set to what comes nearest, so that code that asks
``args.eval_strategy != "no"`` or reads ``args.save_steps`` goes on working.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainwright.config.cadence import Every
from trainwright.config.fields import AllFields, is_ours, ours
from trainwright.config.removal import default_of


@dataclass(frozen=True, slots=True)
class Topic:
    """The arguments that say when one thing happens."""

    every: str
    strategy: str
    steps: str


LOG = Topic("log_every", "logging_strategy", "logging_steps")
EVALUATE = Topic("evaluate_every", "eval_strategy", "eval_steps")
SAVE = Topic("checkpoint_every", "save_strategy", "save_steps")
TOPICS = (LOG, EVALUATE, SAVE)


def cadence(args: AllFields, topic: Topic) -> Every:
    """When ``topic`` is due according to ``args``."""
    text = getattr(ours(args), topic.every)
    if text is not None:
        return Every.parse(text)
    steps = getattr(args, topic.steps)
    # A strategy set after construction may lack its number; the state has a default for it.
    return Every.from_strategy(getattr(args, topic.strategy), 500 if steps is None else steps)


def coerce_cadences(args: AllFields) -> None:
    """Check the spelling and store plain text, whatever was given; needs nothing but the arguments themselves."""
    for topic in TOPICS:
        value = getattr(args, topic.every)
        if value is None or not is_ours(args, topic.every):
            continue
        try:
            every = Every.parse(value)
        except ValueError as error:
            raise ValueError(f"{topic.every}: {error}") from None
        if every.counts("eval") and topic is not SAVE:
            raise ValueError(f"{topic.every}={value!r}: only checkpoint_every can count evaluations; use another unit.")
        setattr(args, topic.every, str(every))


def derive_strategies(args: AllFields) -> None:
    """Set Hugging Face's arguments to what ours come nearest to."""
    for topic in TOPICS:
        text = getattr(ours(args), topic.every)
        if text is None:
            continue
        refuse_contradiction(args, topic)
        strategy, steps = Every.parse(text).as_strategy()
        # The field's own enum, as coercion left it there.
        setattr(args, topic.strategy, type(getattr(args, topic.strategy))(strategy))
        if steps is not None:
            setattr(args, topic.steps, steps)


def refuse_contradiction(args: AllFields, topic: Topic) -> None:
    """Two different answers to the same question are one too many; defaults give way."""
    text = getattr(ours(args), topic.every)
    if text is None:
        return
    strategy, steps = Every.parse(text).as_strategy()
    given = getattr(args, topic.strategy)
    if given not in (default_of(args, topic.strategy), strategy):
        hint = " (save_best=True also saves each new best)" if given == "best" else ""
        raise ValueError(
            f'{topic.strategy}="{given}" and {topic.every}={text!r} contradict each other: keep one{hint}.'
        )
    given_steps = getattr(args, topic.steps)
    if given_steps not in (default_of(args, topic.steps), steps):
        raise ValueError(f"{topic.steps}={given_steps} and {topic.every}={text!r} contradict each other: keep one.")


def log_is_likely(args: AllFields, state: Any, *, epoch_ends: bool) -> bool:
    """Whether the step that is being taken will be logged: asked before it is counted in ``state.global_step``.

    Where that is not known yet (minutes, fractions of an epoch) the answer is yes. ``epoch_ends`` says whether this
    step is known to be the epoch's last.
    """
    step = state.global_step + 1
    if step == 1 and args.logging_first_step:
        return True
    # Asked on every step, so the usual case, none of ours, comes first.
    text = None if args.log_every is None else ours(args).log_every
    every = None if text is None else Every.parse(text)
    if every is None or every.as_strategy()[0] != "steps" or every.only_steps():
        # Hugging Face's words say the same, and state.logging_steps may have been changed by a callback.
        if args.logging_strategy == "steps":
            return step % state.logging_steps == 0
        return args.logging_strategy == "epoch" and (epoch_ends or step >= state.max_steps)
    for part in every.parts:
        interval = part.step_interval(state.max_steps)
        if interval is not None:
            likely = step % interval == 0
        else:
            whole_epochs = part.unit == "epoch" and part.amount == int(part.amount)
            likely = not whole_epochs or epoch_ends or step >= state.max_steps
        if likely:
            return True
    return False
