"""Arguments that cannot do anything here: refused or warned about, as the table in ``hf_fields`` says."""

from trainwright.config.accelerator_options import DEFAULTS
from trainwright.config.derive import BUILT_IN_TRACKERS
from trainwright.config.fields import AllFields, is_ours, ours
from trainwright.config.hf_fields import FIELDS, REMOVED, TRACKIO
from trainwright.config.removal import default_of
from trainwright.config.warnings import warn

_OFF = (None, False, "", "no", "false", "False", [], (), {})


def refuse_unsupported(args: AllFields) -> None:
    """Raise for values that ask for what is not there."""
    for name, field in FIELDS.items():
        if field.status == "refused" and name not in REMOVED and getattr(args, name) not in _OFF:
            raise ValueError(f"{name} is not available: {field.note}.")
    _refuse_accelerator_options(args.accelerator_config, has_state=args.has_accelerate_state)


def _refuse_accelerator_options(config: object, *, has_state: bool) -> None:
    if config is None:
        return
    if not isinstance(config, dict):
        raise ValueError(f"accelerator_config={config!r} must be a dict, JSON text of one, or a JSON file's path.")
    unknown = sorted(set(config) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"accelerator_config has {unknown}; the keys known are {sorted(DEFAULTS)}.")
    if config.get("use_configured_state") and not has_state:
        raise ValueError("accelerator_config: use_configured_state needs accelerate, which is not used; remove it.")


def warn_without_effect(args: AllFields) -> None:
    """One warning for all arguments that were set and change nothing."""
    idle = [f"`{name}` has no effect: {FIELDS[name].note}" for name in _set_without_effect(args)]
    options = ours(args).tracker_options or ()
    if "trackio" not in (args.report_to or ()):
        unread = [name for name in TRACKIO if getattr(args, name) not in _OFF]
        idle += [f'`{name}` has no effect: it is for report_to="trackio"' for name in unread]
    unused = [name for name in options if name in BUILT_IN_TRACKERS and name not in (args.report_to or ())]
    idle += [f"`tracker_options` for {name} have no effect: it is not in report_to" for name in unused]
    if ours(args).engine == "torch":
        if not ours(args).engine_jit:
            idle.append("`engine_jit` has no effect: torch runs op by op anyway; torch_compile=True compiles")
        if not ours(args).engine_check:
            idle.append("`engine_check` has no effect: it compares other engines with torch")
    if idle:
        warn("; ".join(idle) + ".")


def _set_without_effect(args: AllFields) -> list[str]:
    known = type(args).__dataclass_fields__
    found = []
    for name, field in FIELDS.items():
        if field.status != "no effect" or name in REMOVED or name not in known or not is_ours(args, name):
            continue
        value = getattr(args, name)
        # Old launchers pass --local_rank=0 to a single process; nothing is lost by that.
        if value != default_of(args, name) and not (name == "local_rank" and value == 0):
            found.append(name)
    return found
