"""What changes where one phase of a training ends and the next begins: who is trained, rates, decay."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.modifier import Modifier, Site
from trainwright.core.phases import Phase, PhasePlan, condition_of
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.recipes.scheduling.groups import set_in
from trainwright.recipes.selecting import select_parameters

#: States that are all zero where an optimizer has seen nothing.
_AVERAGES = frozenset(
    {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum"}
)


@dataclass(frozen=True)
class RunSettings:
    """The rate and schedule of a run, for phases that do not say theirs."""

    learning_rate: float
    lr_scheduler_type: str
    lr_scheduler_kwargs: Mapping[str, Any]
    warmup_steps: float
    weight_decay: float


#: ``(name, options, warm-up, steps) -> factor of the rate at each step``.
MakeSchedule = Callable[[str, Mapping[str, Any], int, int], Callable[[int], float]]


class Phases(Modifier):
    """Puts the settings of each phase into effect when its first epoch comes.

    Args:
        plan: Which epochs each phase has; the order of samples follows the same plan.
        settings: What holds where a phase says nothing.
        make_schedule: Makes the schedule of a phase.
    """

    sets_learning_rate = True
    changes_graph = True
    changes_weights = False
    #: What ``values_to_save`` holds.
    SAVED = frozenset({"number", "lengths", "decays", "names", "epochs", "settings"})

    def __init__(self, plan: PhasePlan, settings: RunSettings, make_schedule: MakeSchedule) -> None:
        super().__init__()
        self.plan, self.settings, self._make_schedule = plan, settings, make_schedule
        #: The phase that is in effect; -1 before the first.
        self.number = -1
        #: Whether each parameter was trained before the run.
        self._before: dict[str, bool] = {}
        #: Whether each group of the optimizer decays.
        self._decays: list[bool] = []
        self._factors: dict[int, Callable[[int], float]] = {}
        #: What a resumed run had before, until what is different now is said.
        self._saved: dict[str, Any] | None = None
        #: Whether it was seen what the optimizer keeps.
        self._knows_averages = False
        #: Metrics that evaluations of the present phase have shown.
        self._shown: set[str] = set()

    # ---- who is trained

    def prepare_model(self, model: nn.Module) -> None:
        if not self._before:
            self._before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        wanted = [self._trained(model, phase) for phase in self.plan.phases]
        for phase, names in zip(self.plan.phases, wanted, strict=True):
            if not names:
                raise ValueError(f"The phase {phase.name!r} trains no parameter: freeze= names all of them.")
        # The optimizer takes what is trained in any phase, and is made before the first.
        self._switch(model, set().union(*wanted))

    def _trained(self, model: nn.Module, phase: Phase) -> set[str]:
        try:
            if phase.trainable is not None:
                return set(select_parameters(model, _listed(phase.trainable), "trainable"))
            rest = set() if phase.freeze is None else set(select_parameters(model, _listed(phase.freeze), "freeze"))
        except ValueError as error:
            raise ValueError(f"The phase {phase.name!r}: {error}") from None
        return {name for name, is_trained in self._before.items() if is_trained} - rest

    def _switch(self, model: nn.Module, trained: set[str]) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trained)
            if name not in trained:
                parameter.grad = None

    def finish_model(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self._before.get(name, True))

    def forget(self) -> None:
        super().forget()
        self.plan.whole_again()
        self.number, self._before, self._decays, self._factors, self._saved = -1, {}, [], {}, None
        self._knows_averages, self._shown = False, set()

    # ---- when

    def advance(self, site: Site, epoch: float) -> None:
        self.has_begun = True
        if self.number >= 0:
            # The step that ends a phase is that phase's.
            site.logs["phase"] = float(self.number + 1)
            self._refuse_an_optimizer_that_cannot_begin_anew(site)
            self._look_for_metric()
        number = self.plan.number_at(epoch)
        if number != self.number:
            self._enter(site, number, epoch)
        self._set_rates(site, epoch)

    def _refuse_an_optimizer_that_cannot_begin_anew(self, site: Site) -> None:
        """After the first step, when it is seen what it keeps, and not at the border where it is due."""
        if not self._knows_averages and site.optimizer.state:
            self._knows_averages = True
            if any(phase.fresh_optimizer for phase in self.plan.phases[self.number + 1 :]):
                refuse_unknown_averages(site.optimizer)

    def _look_for_metric(self) -> None:
        """Warn, after the evaluations of a step, where none of them has what ``until`` waits for."""
        phase = self.plan.phases[self.number]
        if phase.until is None or not self._shown:
            return
        metric = condition_of(phase.until).metric
        if not {metric, f"eval_{metric}"} & self._shown:
            warnings.warn(
                f"The phase {phase.name!r} waits for {metric} (until={phase.until!r}), and no evaluation has it; there "
                f"are {', '.join(sorted(self._shown))}.",
                TrainwrightWarning,
                stacklevel=2,
            )
        self._shown = set()

    def resume(self, site: Site, epoch: float) -> None:
        if self.number >= 0:
            self._switch(site.model, self._trained(site.model, self.plan.phases[self.number]))
            self._set_decay(site)
        if self._saved is not None:
            self._note_changes(site, self._saved, epoch)
            self._saved = None

    def _note_changes(self, site: Site, saved: dict[str, Any], epoch: float) -> None:
        """Say what is different from now on, and keep it with the run."""
        present = self.plan.phases
        if [phase.name for phase in present] != saved["names"]:
            names = ", ".join(phase.name for phase in present)
            site.note("phases_changed", f"The phases are {names} now; they were {', '.join(saved['names'])}.")
        for number, phase in enumerate(present):
            if phase.name not in saved["names"]:
                continue
            place = saved["names"].index(phase.name)
            now = {**phase.settings(), "epochs": phase.epochs}
            before = {**saved["settings"][place], "epochs": saved["epochs"][place]}
            other = {key: (before.get(key), value) for key, value in now.items() if before.get(key) != value}
            if other:
                told = ", ".join(f"{key} {value!r} (was {old!r})" for key, (old, value) in other.items())
                site.note(
                    "phases_changed",
                    f"Phase {phase.name} from here on with {told}.",
                    phase=phase.name,
                    number=number,
                    epoch=round(epoch, 6),
                    until_epoch=self.plan.start_of(number + 1),
                    learning_rate=self._rate(site, phase),
                    schedule=phase.lr_scheduler_type or self.settings.lr_scheduler_type,
                )

    def _enter(self, site: Site, number: int, epoch: float) -> None:
        phase, is_first = self.plan.phases[number], self.number < 0
        self.number, self._shown = number, set()
        if is_first and not self._decays:
            self._decays = [bool(group.get("weight_decay")) for group in site.optimizer.param_groups]
        names = self._trained(site.model, phase)
        self._switch(site.model, names)
        self._set_decay(site)
        if phase.fresh_optimizer and not is_first:
            forget_averages(site.optimizer)
        trained = sum(parameter.numel() for name, parameter in site.model.named_parameters() if name in names)
        site.note(
            "phase",
            f"Phase {phase.name} begins: epochs {self.plan.start_of(number)} to {self.plan.start_of(number + 1)}, "
            f"{self.plan.steps_of(number)} steps, {trained:,} parameters trained, rate {self._rate(site, phase):g}.",
            phase=phase.name,
            number=number,
            epoch=round(epoch, 6),
            until_epoch=self.plan.start_of(number + 1),
            trained_parameters=trained,
            learning_rate=self._rate(site, phase),
            schedule=phase.lr_scheduler_type or self.settings.lr_scheduler_type,
            own_data=phase.train_dataset is not None,
        )

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End a phase whose bound is reached, with the present epoch."""
        if self.site is None or self.number < 0 or (until := self.plan.phases[self.number].until) is None:
            return
        epoch, last = self._epoch(state), self.plan.start_of(self.number + 1)
        metrics: dict[str, float] = kwargs.get("metrics") or {}
        self._shown |= metrics.keys()
        number, ends = self.number, max(math.ceil(round(epoch, 9)), self.plan.start_of(self.number) + 1)
        if ends >= last or not condition_of(until).holds(metrics):
            return
        left = self.plan.step_in(number, ends) - self.plan.step_in(number, epoch)
        self.plan.end(number, ends)
        state.max_steps = state.global_step + left + self.plan.steps_after(ends)
        state.num_train_epochs = self.plan.epochs
        self.site.note(
            "phase",
            f"Phase {self.plan.phases[number].name} ends with epoch {ends} instead of {last}: {until}. The run has "
            f"{state.max_steps} steps now.",
            phase=self.plan.phases[number].name,
            number=number,
            epoch=float(ends),
        )
        with self.site.changing():
            self.advance(self.site, epoch)

    # ---- rates

    def _usual_rate(self, site: Site) -> float:
        """The run's; an optimizer that a script made has its own."""
        rates = [float(group.get("initial_lr", self.settings.learning_rate)) for group in site.optimizer.param_groups]
        return self.settings.learning_rate if self.settings.learning_rate in rates else max(rates)

    def _rate(self, site: Site, phase: Phase) -> float:
        return self._usual_rate(site) if phase.learning_rate is None else float(phase.learning_rate)

    def _set_rates(self, site: Site, epoch: float) -> None:
        usual, wanted = self._usual_rate(site), self._rate(site, self.plan.phases[self.number])
        factor = self._factor(self.number)(self.plan.step_in(self.number, epoch))
        for group in site.optimizer.param_groups:
            own = float(group.get("initial_lr", usual))
            # Groups with rates of their own keep their relation to the others.
            set_in(group, "lr", (wanted if own == usual else wanted * own / usual) * factor)

    def _factor(self, number: int) -> Callable[[int], float]:
        if number not in self._factors:
            phase, all_of_it = self.plan.phases[number], self.settings
            is_own = phase.lr_scheduler_type is not None or phase.lr_scheduler_kwargs is not None
            options = (phase.lr_scheduler_kwargs or {}) if is_own else all_of_it.lr_scheduler_kwargs
            warmup = all_of_it.warmup_steps if phase.warmup_steps is None else phase.warmup_steps
            steps = self.plan.steps_of(number)
            kind = phase.lr_scheduler_type or all_of_it.lr_scheduler_type
            self._factors[number] = self._make_schedule(kind, options, warmup_of(warmup, steps), steps)
        return self._factors[number]

    def _set_decay(self, site: Site) -> None:
        phase = self.plan.phases[self.number]
        decay = self.settings.weight_decay if phase.weight_decay is None else phase.weight_decay
        for group, decays in zip(site.optimizer.param_groups, self._decays, strict=True):
            if decays and any(one.weight_decay is not None for one in self.plan.phases):
                set_in(group, "weight_decay", decay)

    # ---- state

    def values_to_save(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "lengths": list(self.plan.lengths),
            "decays": self._decays,
            "names": [phase.name for phase in self.plan.phases],
            "epochs": [phase.epochs for phase in self.plan.phases],
            "settings": [phase.settings() for phase in self.plan.phases],
        }

    def refuse_other(self, values: dict[str, Any]) -> None:
        """Phases that a run has begun stay as they were, and those that are over as long."""
        names, number = values["names"], values["number"]
        present = [phase.name for phase in self.plan.phases]
        if names[: number + 1] != present[: number + 1]:
            raise ValueError(
                f"The run is in its phase {names[number]!r}, after {', '.join(names[:number]) or 'none'}; the phases "
                f"now are {', '.join(present)}. Go on with those that it has begun, or begin a new run."
            )
        for phase, epochs in zip(self.plan.phases[:number], values["epochs"], strict=False):
            if phase.epochs != epochs:
                raise ValueError(
                    f"The phase {phase.name!r} is over and had {epochs} epochs; now it has {phase.epochs}: set it back."
                )
        for phase, before in zip(self.plan.phases[:number], values["settings"], strict=False):
            other = {name: before.get(name) for name, value in phase.settings().items() if before.get(name) != value}
            if other:
                told = ", ".join(f"{name}={value!r}" for name, value in other.items())
                raise ValueError(f"The phase {phase.name!r} is over and had {told}: set it back.")

    def load_saved(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self.refuse_other(values)
        self._saved = values
        self.number, self._decays = values["number"], list(values["decays"])
        for number in range(self.number + 1):
            if values["lengths"][number] != values["epochs"][number]:
                # It ended, or ends with the present epoch, because its bound was reached.
                self.plan.lengths[number] = values["lengths"][number]


def _listed(names: str | Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def warmup_of(warmup: float, steps: int) -> int:
    """Steps of warm-up, of which less than 1 is a share of ``steps``."""
    return math.ceil(warmup * steps) if warmup < 1 else int(warmup)


def refuse_unknown_averages(optimizer: Any) -> None:
    """An optimizer is let begin anew only where it is known how it begins."""
    states = [state for state in optimizer.state.values() if isinstance(state, dict)]
    unknown = {name for state in states for name in state} - _AVERAGES
    if unknown or any(group.get("dampening") for group in optimizer.param_groups):
        raise ValueError(
            f"fresh_optimizer=True: what {type(optimizer).__name__} keeps ({', '.join(sorted(unknown)) or 'dampening'})"
            " is not known to be zero at its start. Leave it out, or train the phase as a run of its own."
        )


def forget_averages(optimizer: Any) -> None:
    """Let an optimizer begin anew with the parameters as they are; in place, since fused kernels hold its tensors."""
    refuse_unknown_averages(optimizer)
    with torch.no_grad():
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    value.zero_()
                elif value is not None:
                    state[name] = type(value)(0)
