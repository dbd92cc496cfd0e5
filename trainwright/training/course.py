"""Optimizer and schedule of a run that goes on with other settings: from the resumed step on, those of now."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainwright.checkpoint.interchange.continuing import (
    PresentOptimizer,
    for_groups,
    group_sources,
    in_groups_of,
)
from trainwright.engines.torch.joint import in_form_of
from trainwright.engines.torch.made import Made, gone_on, made_with, other_rates, place_at, plain, set_rates
from trainwright.engines.torch.targets import unwrap
from trainwright.training.hooks import is_users_own
from trainwright.training.optimizers import optimizer_parameter_names
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup

#: Options of groups that follow from arguments, for checkpoints that do not say what theirs were made with.
_FROM_ARGUMENTS = {
    "lr": ("learning_rate",),
    "weight_decay": ("weight_decay",),
    "betas": ("adam_beta1", "adam_beta2"),
    "eps": ("adam_epsilon",),
}


@dataclasses.dataclass
class CourseSoFar:
    """What a checkpoint says of the optimizer and schedule that it holds."""

    made: Made
    #: The rate of each group at the resumed step.
    rates: list[Any]
    #: Whether the schedule is of another class than the one whose state was saved.
    other_schedule: bool = False


def made_now(setup: Setup, total_steps: int) -> Made | None:
    """What optimizer and schedule are made with; None where they were given with steps behind them."""
    if setup.optimizer.state and not setup.own_optimizer:
        return None
    return made_with(setup.optimizer, setup.lr_scheduler, curve_now(setup, total_steps))


def curve_now(setup: Setup, total_steps: int) -> dict[str, Any]:
    """What decides the rate of each step, where the schedule is made from the arguments."""
    if not schedule_is_ours(setup) or sets_rates_by_recipe(setup):
        return {}
    kind = setup.args.lr_scheduler_type
    return {
        "schedule": str(getattr(kind, "value", kind)),
        "options": plain(setup.args.lr_scheduler_kwargs or {}),
        "warmup_steps": setup.args.get_warmup_steps(total_steps),
        "total_steps": total_steps,
    }


def schedule_is_ours(setup: Setup) -> bool:
    """Return True where the schedule follows the arguments."""
    return setup.own_scheduler and not is_users_own(setup.hooks(), "create_scheduler")


def sets_rates_by_recipe(setup: Setup) -> bool:
    """Return True where a recipe's modifiers set the rates."""
    return any(modifier.sets_learning_rate for modifier in setup.modifiers)


def present_optimizer(setup: Setup) -> PresentOptimizer:
    """The optimizer that a saved state is for."""
    model = unwrap(setup.model)
    return PresentOptimizer(
        numbered=optimizer_parameter_names(setup),
        group_sizes=[len(group["params"]) for group in setup.optimizer.param_groups],
        shapes={name: tuple(parameter.shape) for name, parameter in model.named_parameters()},
        trained=[name for name, parameter in model.named_parameters() if parameter.requires_grad],
        decay=frozenset(setup.hooks().get_decay_parameter_names(model)),
    )


def in_present_groups(setup: Setup, optimizer: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Put saved settings into the present groups where the same parameters were in others; ``rest`` to match.

    Releases before 0.2 made one group where nothing decayed.
    """
    groups = optimizer["param_groups"]
    present = present_optimizer(setup)
    numbered = (rest.get("parameters") or {}).get("numbered") or (present.numbered if len(groups) == 1 else [])
    sizes = [len(group["params"]) for group in groups]
    if sizes == present.group_sizes or sorted(numbered) != sorted(present.numbered) or sum(sizes) != len(numbered):
        return rest
    sources = group_sources(groups, dict(enumerate(numbered)), present)
    optimizer["param_groups"] = in_groups_of(groups, sources, present)
    rest = {**rest, "scheduler": for_groups(rest["scheduler"], sources, len(sizes))}
    if _stored_made(rest.get("made"), len(sizes)) is not None:
        made = rest["made"]
        regrouped = [made["groups"][source] for source in sources]
        schedule = for_groups(made["schedule"], sources, len(sizes)) if made["schedule"] else None
        rest["made"] = {**made, "groups": regrouped, "schedule": schedule}
    return rest


def made_then(run: TrainingRun, rest: dict[str, Any], groups: list[dict[str, Any]], max_steps: int) -> Made:
    """What the checkpoint's optimizer and schedule were made with, as far as it is known."""
    now = run.made
    assert now is not None
    if (known := _stored_made(rest.get("made"), len(groups))) is not None:
        return known
    if run.setup.modifiers or rest.get("imported_from") not in (None, "transformers"):
        # A recipe moves the settings of groups, and what arguments mean to other libraries is not known.
        return dataclasses.replace(now, schedule=None, curve={})
    config, present = run.config_then or {}, run.setup.given_args.to_dict()
    found = []
    for group, new in zip(groups, now.groups, strict=True):
        were = {**group, "lr": group.get("initial_lr", group.get("lr"))}
        options = {}
        for option, arguments in _FROM_ARGUMENTS.items():
            is_same = all(name in config and config[name] == present[name] for name in arguments)
            # OneCycleLR and CyclicLR move the betas too, and leave this key behind.
            moves = option == "betas" and "max_momentum" in group
            if option in were and option in new:
                options[option] = new[option] if is_same or moves else plain(were[option])
        found.append({**new, **options})
    return Made(found, None, _curve_then(config, present, max_steps))


def _stored_made(stored: object, groups: int) -> Made | None:
    """What a checkpoint says that its tools were made with; None where it says nothing that can be used."""
    if not isinstance(stored, dict) or not isinstance(stored.get("curve"), dict):
        return None
    found = stored.get("groups")
    if not isinstance(found, list) or len(found) != groups or not all(isinstance(group, dict) for group in found):
        return None
    if not all(isinstance(group.get("lr", 0.0), (int, float)) for group in found):
        return None
    return Made(found, stored.get("schedule"), stored["curve"])


def _curve_then(config: Mapping[str, Any], present: Mapping[str, Any], max_steps: int) -> dict[str, Any]:
    """The curve by a checkpoint's arguments; those of another library say only how long it is."""
    known = {"schedule": "lr_scheduler_type", "options": "lr_scheduler_kwargs"}
    curve = {part: config[name] or {} for part, name in known.items() if name in config}
    if config.get("warmup_steps", present["warmup_steps"]) != present["warmup_steps"]:
        curve["warmup_steps"] = None
    return {**curve, "total_steps": max_steps}


def load_options(groups: list[dict[str, Any]], optimizer: Any, then: Made, now: Made | None) -> list[dict[str, Any]]:
    """Saved settings of groups, with those of now where they are made otherwise, or are new."""
    loaded = []
    for number, (group, present) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        fresh = {name: value for name, value in present.items() if name != "params"}
        changed = {}
        if now is not None:
            old, new = then.groups[number], now.groups[number]
            changed = {name: fresh[name] for name in new if name in old and old[name] != new[name] and name != "lr"}
        loaded.append({**fresh, **group, **changed})
    return loaded


def load_schedule(scheduler: Any, saved: dict[str, Any], then: Made, now: Made | None) -> dict[str, Any]:
    """A schedule's saved state, with what is made otherwise now; the schedule itself may have moved since."""
    if now is None or now.schedule is None:
        return saved
    return gone_on(then.schedule, saved, in_form_of(now.schedule, scheduler.state_dict()))


def take_new_course(run: TrainingRun, so_far: CourseSoFar | None) -> None:
    """Set the rates of the resumed step, where they are not those of before."""
    setup = run.setup
    if so_far is None or run.made is None or sets_rates_by_recipe(setup):
        return
    if so_far.other_schedule:
        place_at(setup.lr_scheduler, setup.state.global_step)
        # From the start of the new one, which is not to be scaled.
        so_far.rates, so_far.made = list(run.made.rates()), dataclasses.replace(run.made, schedule=None, curve={})
    if so_far.other_schedule or other_rates(so_far.made, run.made):
        set_rates(setup.optimizer, setup.lr_scheduler, so_far.rates, so_far.made, run.made)
        setup.engine.reread()
