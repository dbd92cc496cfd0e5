"""Modifiers that come with the library, with SparseML's constructors and life cycle."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from trainwright.compat.sparseml.classes.bases import BaseModifier
from trainwright.compat.sparseml.classes.lifecycle import ScheduledModifier
from trainwright.compat.sparseml.classes.properties import ModifierProp
from trainwright.compat.sparseml.classes.texts import as_text
from trainwright.compat.sparseml.grad_sampler import calibration_of, gradients_from
from trainwright.compat.sparseml.sparsification.types import SparsificationTypes
from trainwright.compat.sparseml.teaching import engage, for_teacher
from trainwright.config.registry import is_shipped
from trainwright.core.modifier import Modifier as NativeModifier
from trainwright.core.modifier import Site
from trainwright.recipes.building import arguments_of, build_modifier, modifier_class
from trainwright.recipes.distillation.base import LearnsFromTeacher
from trainwright.recipes.distillation.teacher import DISABLE
from trainwright.recipes.language.records import ModifierSpec
from trainwright.recipes.oneshot import AFTER_ALL, apply_modifiers
from trainwright.recipes.pruning.base import PruningModifier
from trainwright.recipes.pruning.layers import LayerPruningModifier
from trainwright.recipes.pruning.optimizer_state import replace_parameters
from trainwright.recipes.pruning.thinning import LayerThinningModifier
from trainwright.recipes.quantization.modifier import QuantizationModifier
from trainwright.recipes.scheduling.epochs import EpochRangeModifier
from trainwright.recipes.scheduling.parameters import GradualParamModifier, SetParamModifier
from trainwright.recipes.scheduling.weight_decay import SetWeightDecayModifier

#: What begins with the first update; the rest is on the model as soon as that is known.
_WAIT = (SetWeightDecayModifier, LearnsFromTeacher, SetParamModifier, GradualParamModifier)
#: Of the base classes, which have room for them.
_SCHEDULE = ("start_epoch", "end_epoch", "update_frequency")


class Argument(ModifierProp):
    """One argument of a constructor, as a property."""

    def __init__(self, name: str, serializable: bool, is_own: bool) -> None:
        doc = f"As given, or the default of ``{name}``."
        super().__init__(serializable, func_get=self._read, func_set=self._write if is_own else None, doc=doc)
        self._name = name

    def _read(self, modifier: Shipped) -> Any:
        return modifier.argument(self._name)

    def _write(self, modifier: Shipped, value: object) -> None:
        modifier.change(self._name, value)


class Shipped(ScheduledModifier):
    """A constructor of SparseML's before a modifier of ours, ``native``; its arguments are properties.

    What is not a property here is looked for there (``modifier.masks``, say).
    """

    #: What recipes call it.
    kind = ""
    #: Arguments that are only there to be refused, and not written.
    unwritten: tuple[str, ...] = ()
    #: Whether an argument is another than it was made with.
    is_changed = False
    _parameters: Mapping[str, inspect.Parameter] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not is_shipped("modifier", cls.__name__):
            # A class of somebody's own: it stays what its base is.
            return
        cls.kind = cls.__name__
        parameters = inspect.signature(cls).parameters.items()
        cls._parameters = {name: one for name, one in parameters if one.kind is not one.VAR_KEYWORD}
        inherited = [name for name in dir(cls) if isinstance(getattr(cls, name, None), Argument)]
        for name in {*cls._parameters, *inherited}.difference(_SCHEDULE, vars(cls)):
            is_own = name in cls._parameters
            setattr(cls, name, Argument(name, is_own and name not in cls.unwritten, is_own))

    def __init__(self, given: Mapping[str, Any]) -> None:
        """``given`` are the ``locals()`` of a constructor: its arguments, before anything else is in them."""
        own = {name: value for name, value in given.items() if name in type(self)._parameters}
        for name, value in (given.get("more") or {}).items():
            if name not in arguments_of(self._native_class()):
                raise ValueError(f"{self.kind} has no argument {name!r}; it takes {', '.join(self._parameters)}.")
            own[name] = value
        said = {n: v for n, v in own.items() if n not in self._parameters or not _same(v, self._parameters[n].default)}
        self._adopt(self._build(said), said)

    @classmethod
    def around(cls, native: NativeModifier, arguments: Mapping[str, Any] | None) -> Shipped:
        """The same for a modifier that is there already; without ``arguments`` it cannot be written."""
        made = cls.__new__(cls)
        made._adopt(native, arguments)
        return made

    def _adopt(self, native: NativeModifier, arguments: Mapping[str, Any] | None) -> None:
        self._is_ready = False
        self._is_known = arguments is not None
        self.__dict__["native"] = native
        schedule: dict[str, Any] = {"start_epoch": native.start_epoch, "end_epoch": native.end_epoch}
        if isinstance(getattr(type(self), "update_frequency", None), ModifierProp):
            default = self._parameters["update_frequency"].default if "update_frequency" in self._parameters else -1.0
            known = arguments or {}
            schedule["update_frequency"] = known.get("update_frequency", native.update_frequency)
            if "update_frequency" not in known and schedule["update_frequency"] == default:
                schedule["update_frequency"] = default
        super().__init__(end_comparator=-1, **schedule)
        self._said: dict[str, Any] = dict(arguments or {})
        self._site: Site | None = None
        self._is_ready = True

    # ---- under a manager

    @property
    def _is_held(self) -> bool:
        """Whether a manager trains with it: another value would be written, and not act."""
        return is_held(self.native)

    def renew(self) -> None:
        """Another modifier with the same settings, for what was in a training does not begin again."""
        if self.native.written_as is None:
            raise ValueError(f"This {type(self.native).__name__} is in another manager: make a new one for this.")
        self.__dict__["native"] = build_modifier(self.native.written_as)

    # ---- arguments

    @classmethod
    def _native_class(cls) -> Any:
        return modifier_class(cls.kind)

    def _build(self, said: Mapping[str, Any]) -> NativeModifier:
        return build_modifier(ModifierSpec(self.kind, {name: as_plain(value) for name, value in said.items()}))

    def argument(self, name: str) -> Any:
        """As it was given, or its default."""
        if name in self._said:
            return self._said[name]
        default = self._parameters[name].default if name in self._parameters else None
        # What was not written down may be known to the modifier itself.
        return default if self._is_known and name in self._parameters else getattr(self.native, name, default)

    def change(self, name: str, value: object) -> None:
        """Another value for an argument; what does not fit is refused as in the constructor."""
        said = {**self._said, name: value}
        self.__dict__["native"] = self._build(said)
        self._said, self.is_changed = said, True

    def validate_schedule(self) -> None:
        super().validate_schedule()
        self._take_over(start_epoch=self._start_epoch, end_epoch=self._end_epoch)

    def validate_update(self) -> None:
        super().validate_update()  # type: ignore[misc]
        self._take_over(update_frequency=self._update_frequency)  # type: ignore[attr-defined]

    def _take_over(self, **schedule: float) -> None:
        """Let the modifier itself have a schedule that was changed here."""
        if not self._is_ready or all(getattr(self.native, name) == value for name, value in schedule.items()):
            return
        taken = {name: value for name, value in schedule.items() if name in arguments_of(self._native_class())}
        said = {**self._said, **{name: value for name, value in taken.items() if value != -1 or name in self._said}}
        self.__dict__["native"] = self._build(said)
        self._said, self.is_changed = said, True

    def advance_epochs(self, ref_start_epoch: float | None = None) -> None:
        if self._is_held and ref_start_epoch is not None:
            raise AttributeError(f"{type(self).__name__} cannot be moved any more: the modifier is in use.")
        super().advance_epochs(ref_start_epoch)
        moved = [name for name in ("update_epochs",) if self._said.get(name)]
        for name in moved if ref_start_epoch is not None else []:
            self.change(name, [epoch + ref_start_epoch for epoch in self._said[name]])

    def __getattr__(self, name: str) -> Any:
        native = self.__dict__.get("native")
        if native is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(native, name)

    def props(self, only_serializable: bool, format_str: bool = False, format_repr: bool = False) -> dict[str, Any]:
        if format_str and not self._is_known:
            raise ValueError("Modifiers that are in no recipe cannot be written as one: put them into the recipe.")
        found = super().props(only_serializable, format_str, format_repr)
        # Words of a recipe that SparseML's constructors do not have.
        more = {n: v for n, v in self._said.items() if n not in {*self._parameters, *_SCHEDULE, "log_types"}}
        found |= {n: as_text(v) if format_str else repr(v) if format_repr else v for n, v in more.items()}
        return dict(sorted(found.items()))

    @BaseModifier.sparsification_types.getter
    def sparsification_types(self) -> list[SparsificationTypes]:  # type: ignore[bad-override]
        """What kinds of change it makes."""
        return types_of(self.native)

    # ---- a life of its own; under a manager or a Trainer the modifier itself is asked

    def initialize(
        self,
        module: nn.Module,
        epoch: float = 0,
        loggers: Any = None,
        *,
        distillation_teacher: Any = DISABLE,
        grad_sampler: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().initialize(module, epoch, loggers, **kwargs)
        native = self.native
        self._site = Site(module, None, 1.0, gradients=gradients_from(module, grad_sampler), rebuild=self._rebuild)
        if isinstance(native, LearnsFromTeacher):
            engage([native], module, distillation_teacher)
        native.prepare_model(module)
        if not native.sets_learning_rate and not isinstance(native, _WAIT) and native.start_epoch <= epoch:
            native.advance(self._site, min(epoch, AFTER_ALL))

    def _rebuild(self, mapping: dict[Any, Any]) -> None:
        if self._site is not None and self._site.optimizer is not None:
            replace_parameters(self._site.optimizer, mapping)
        self.native.replaced(mapping)

    def _at(self, module: nn.Module, optimizer: Any, steps_per_epoch: float) -> Site:
        assert self._site is not None
        self._site.model, self._site.optimizer, self._site.steps_per_epoch = module, optimizer, steps_per_epoch
        return self._site

    def update(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        super().update(module, optimizer, epoch, steps_per_epoch)
        self.native.advance(self._at(module, optimizer, steps_per_epoch), epoch)

    def loss_update(
        self,
        loss: Any,
        module: nn.Module,
        optimizer: Any,
        epoch: float,
        steps_per_epoch: float,
        student_outputs: Any = None,
        student_inputs: Any = None,
        teacher_inputs: Any = None,
        **kwargs: Any,
    ) -> Any:
        super().loss_update(loss, module, optimizer, epoch, steps_per_epoch, **kwargs)
        native = self.native
        if not isinstance(native, LearnsFromTeacher) or native.teacher is None:
            return loss
        site = self._at(module, optimizer, steps_per_epoch)
        extra = [] if native.has_begun or optimizer is None else list(native.extra_parameters().values())
        if extra:
            optimizer.add_param_group({"params": extra})
        native.advance(site, epoch)
        if native.is_active and (student_outputs is None or student_inputs is None):
            raise ValueError("A teacher is compared with: pass student_outputs= and student_inputs= to loss_update.")
        return native.modify_loss(loss, student_outputs, for_teacher(student_inputs, teacher_inputs))

    def optimizer_pre_step(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        super().optimizer_pre_step(module, optimizer, epoch, steps_per_epoch)
        site = self._at(module, optimizer, steps_per_epoch)
        self.native.shape_gradients(site)
        self.native.before_update(site)

    def optimizer_post_step(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        super().optimizer_post_step(module, optimizer, epoch, steps_per_epoch)
        self.native.after_update(self._at(module, optimizer, steps_per_epoch))

    def finalize(self, module: nn.Module | None = None, reset_loggers: bool = True, **kwargs: Any) -> None:
        super().finalize(module, reset_loggers, **kwargs)
        known = self._site.model if module is None and self._site is not None else module
        if known is not None:
            self.native.finish_model(known)

    def apply(
        self, module: nn.Module, epoch: float = math.inf, loggers: Any = None, finalize: bool = True, **kwargs: Any
    ) -> None:
        loader = kwargs.get("calibration_dataloader")
        apply_modifiers(
            module,
            [self.native],
            gradients=gradients_from(module, kwargs.get("grad_sampler")),
            calibrate=loader,
            run=calibration_of(module, loader, kwargs.get("calibration_function")),
            epoch=min(epoch, AFTER_ALL),
            finish=finalize,
        )

    def state_dict(self) -> dict[str, Any]:
        return self.native.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        self.native.load_state_dict(state_dict)


def hold(one: object) -> None:
    """Note that a manager trains with it."""
    vars(one)["is_held"] = True


def is_held(one: object) -> bool:
    """Whether one does."""
    return vars(one).get("is_held", False)


def types_of(native: NativeModifier) -> list[SparsificationTypes]:
    """What kinds of change a modifier of ours makes."""
    is_layer = isinstance(native, (LayerPruningModifier, LayerThinningModifier))
    rounds = isinstance(native, QuantizationModifier)
    kinds = {
        SparsificationTypes.epoch: isinstance(native, EpochRangeModifier),
        SparsificationTypes.learning_rate: native.sets_learning_rate,
        SparsificationTypes.regularization: isinstance(native, SetWeightDecayModifier),
        SparsificationTypes.pruning: is_layer or isinstance(native, PruningModifier),
        SparsificationTypes.quantization: rounds,
        SparsificationTypes.distillation: isinstance(native, LearnsFromTeacher),
        SparsificationTypes.structured: rounds or native.changes_structure,
    }
    return [kind for kind, is_one in kinds.items() if is_one]


def as_plain(value: object) -> Any:
    """Objects that stand for a mapping in a recipe (a QuantizationScheme) as that mapping."""
    if callable(getattr(value, "as_recipe", None)):
        return value.as_recipe()  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        return {key: as_plain(item) for key, item in value.items()}
    return [as_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) in (bool, int, float, str) and type(one) is type(other) and one == other)
