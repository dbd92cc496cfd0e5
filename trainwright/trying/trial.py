"""The whole try: which processes run in which order, and what comes out."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainwright.config.secrets import masked_command
from trainwright.trying.causes import (
    Cause,
    cause_before_probing,
    cause_from_probes,
    cause_from_single_batches,
    other_gradients,
    other_weights,
    unknown,
)
from trainwright.trying.compare import (
    first_difference,
    is_noisy,
    largest_difference,
    resumed_like,
    speed,
    weights_difference,
    within_noise,
)
from trainwright.trying.plan import OURS, THEIRS, Plan, newest_checkpoint
from trainwright.trying.refusing import MARK
from trainwright.trying.running import Processes, Ran, last_lines
from trainwright.trying.switch import Change, changes_in
from trainwright.version import __version__

#: Steps of a run that finds out why losses differ.
_PROBE_STEPS = 3


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    script: Path
    words: list[str]
    steps: int
    timeout: float


class ScriptFailed(Exception):
    """The script did not train under one of the libraries."""

    def __init__(self, ran: Ran) -> None:
        super().__init__(ran.plan.library)
        self.ran = ran


def run_try(request: Request, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the script on both libraries and return the facts, as ``--json`` prints them."""
    facts: dict[str, Any] = {
        "script": str(request.script),
        "arguments": masked_command(request.words),
        "versions": {THEIRS: version("transformers"), OURS: __version__, "torch": version("torch")},
    }
    on_gpu = _has_accelerator()
    processes = Processes(folder, request.timeout, fork=not on_gpu)
    try:
        facts |= _Try(request, folder, processes, say, on_gpu=on_gpu).facts()
    except ScriptFailed as failure:
        facts |= {"agrees": False, "failed": _failure(failure.ran)}
    finally:
        processes.close()
    return facts


class _Try:
    """One try, from its first process to its last.

    A GPU adds in another order each time, unless it is told not to, which makes it slower. So there everything that is
    compared bit by bit runs in a fixed order, and speeds are taken from two runs without it.
    """

    def __init__(
        self, request: Request, folder: Path, processes: Processes, say: Callable[[str], None], *, on_gpu: bool
    ) -> None:
        self.request, self.folder, self.processes, self.say = request, folder, processes, say
        self.on_gpu = on_gpu
        #: Whether runs add in a fixed order; a model that cannot is found out by the first of them.
        self.repeatable = on_gpu
        self._left = folder / "left"

    def plan(self, library: str, name: str, **more: Any) -> Plan:
        script = self.request.script
        own = [str(script.resolve().parent), str(Path.cwd())]
        folder = str(self.folder / f"{name}-{library}")
        plan = Plan(library, str(script.absolute()), self.request.words, folder, self.request.steps)
        return replace(replace(plan, own_folders=own, repeatable=self.repeatable), **more)

    def facts(self) -> dict[str, Any]:
        self.say("1 of 4: both libraries, killed half-way")
        killed = self._run_both("killed", killed=True)
        if self.repeatable and any(_has_no_fixed_order(one) for one in killed):
            self.repeatable = False
            killed = self._run_both("killed-again", killed=True)
        for one in killed:
            if not (one.was_killed or one.trained):
                raise ScriptFailed(one)
        straight = []
        for number, library in enumerate((THEIRS, OURS), 2):
            self.say(f"{number} of 4: {library}, without interruption")
            straight.append(self.processes.run(self.plan(library, "straight")))
            if not straight[-1].trained:
                raise ScriptFailed(straight[-1])
        self.say("4 of 4: both resumed, and transformers from a checkpoint of trainwright")
        resumed, back = self._resume(killed), self._go_back(killed[1])
        losses = self._losses(straight, killed)
        found = self._speeds(straight, resumed)
        resumes = {
            whole.plan.library: resumed_like(whole, half, again)
            for whole, half, again in zip(straight, killed, resumed, strict=True)
            if half.was_killed
        }
        agrees = losses["agrees"] and (not resumes or (resumes[OURS]["equal"] and bool(back and back["resumed"])))
        return {
            "steps": straight[0].observed["steps"],
            "device": straight[0].observed["device"],
            "model": straight[0].observed["model"],
            "losses": losses,
            "speed": {**found, "noisy": is_noisy(*found.values()), "within_noise": within_noise(*found.values())},
            "resume": resumes,
            "back": back,
            "notes": self._notes(straight),
            "switch": [asdict(change) for change in switch_lines(straight[0].observed.get("files", []))],
            "agrees": agrees,
        }

    def _notes(self, straight: list[Ran]) -> list[str]:
        notes = _notes(self.request, straight[0].observed)
        if self.on_gpu and not self.repeatable:
            notes.append("An operation of this model has no deterministic form on this GPU: no two runs are the same.")
        return [*notes, *straight[1].observed.get("warnings", [])]

    def _run_both(self, name: str, **more: Any) -> list[Ran]:
        return [self.processes.run(self.plan(library, name, **more)) for library in (THEIRS, OURS)]

    def _resume(self, killed: list[Ran]) -> list[Ran | None]:
        """Resume both where they were killed, each alone: their steps are measured too, and in the other order.

        From a copy of the checkpoint, in a new folder: a script may clear its output folder, or refuse one with files.
        """
        found: list[Ran | None] = []
        for ran in reversed(killed):
            checkpoint = newest_checkpoint(ran.plan.output_dir) if ran.was_killed else None
            if checkpoint is None:
                found.insert(0, None)
                continue
            kept = shutil.copytree(checkpoint, self._left / ran.plan.library / checkpoint.name)
            found.insert(0, self.processes.run(self.plan(ran.plan.library, "resumed", resume_from=str(kept))))
        return found

    def _go_back(self, killed: Ran) -> dict[str, Any] | None:
        """Let transformers resume from the checkpoint that our killed run left."""
        checkpoint = newest_checkpoint(self._left / OURS) if killed.was_killed else None
        return _back(self.processes.run(self.plan(THEIRS, "back", export_from=str(checkpoint)))) if checkpoint else None

    def _speeds(self, straight: list[Ran], resumed: list[Ran | None]) -> dict[str, dict[str, Any]]:
        if not self.repeatable:
            # The steps of a resumed run are further ones, at another time.
            others = [[again] if again and again.trained else [] for again in resumed]
            return {one.plan.library: speed(one, more) for one, more in zip(straight, others, strict=True)}
        self.say("And for speed: both once more, adding in whatever order is quickest")
        timed = self._run_both("timed", repeatable=False)
        for one in timed:
            if not one.trained:
                raise ScriptFailed(one)
        return {one.plan.library: speed(one, []) for one in timed}

    def _losses(self, straight: list[Ran], killed: list[Ran]) -> dict[str, Any]:
        theirs, ours = straight
        difference = first_difference(theirs.losses, ours.losses)
        facts: dict[str, Any] = {
            THEIRS: [theirs.losses[step] for step in sorted(theirs.losses)],
            OURS: [ours.losses[step] for step in sorted(ours.losses)],
            "equal": difference is None and theirs.losses.keys() == ours.losses.keys(),
            "largest_difference": largest_difference(theirs.losses, ours.losses),
        }
        facts["gradient_norms"] = {one.plan.library: list(one.gradient_norms.values()) for one in straight}
        facts["largest_weight_difference"] = weights_difference(theirs, ours)
        if difference is None:
            cause = other_gradients(theirs, ours) or other_weights(facts["largest_weight_difference"])
            return facts | ({"agrees": facts["equal"]} if cause is None else {"cause": asdict(cause), "agrees": False})
        cause = cause_before_probing(theirs, ours, killed[0], difference) or self._probe(theirs, ours)
        gap = abs(difference.first - difference.second)
        first = {"step": difference.step, THEIRS: difference.first, OURS: difference.second, "difference": gap}
        return facts | {"first_difference": first, "cause": asdict(cause), "agrees": cause.harmless}

    def _probe(self, theirs: Ran, ours: Ran) -> Cause:
        self.say("The losses differ: a few steps more, without dropout, to find out why")
        steps = min(_PROBE_STEPS, self.request.steps)
        probes = self._run_both("probe", probe=True, steps=steps)
        cause = cause_from_probes(ours, *probes)
        if cause is None and ours.observed["accumulation"] > 1:
            cause = cause_from_single_batches(ours, *self._run_both("single", probe=True, single=True, steps=steps))
        return cause or unknown(*probes)


def _has_no_fixed_order(ran: Ran) -> bool:
    """Return True where a run ended because torch has no deterministic form of something it needs."""
    return not ran.trained and "deterministic" in str(ran.observed.get("traceback", ""))


def _back(back: Ran) -> dict[str, Any]:
    facts = {"resumed": back.trained, "from_step": back.observed.get("start_step")}
    facts["losses"] = [back.losses[step] for step in sorted(back.losses)]
    return facts if back.trained else facts | {"error": last_lines(back)}


def _failure(ran: Ran) -> dict[str, Any]:
    """Why a script did not train, in words and with the last lines of what it said."""
    outcome = str(ran.observed.get("outcome"))
    lines = [] if outcome == "never trained" else last_lines(ran)
    if outcome == "left" and not lines:
        lines = [f"exit code {ran.observed.get('code')}"]
    facts = {"library": ran.plan.library, "log": str(ran.log), "lines": lines}
    if (Path(ran.plan.folder) / MARK).exists():
        return facts | {"reason": "elsewhere"}
    if ran.timed_out:
        return facts | {"reason": "timeout"}
    return facts | {
        "reason": {"never trained": "never trained", "failed": "error", "left": "left"}.get(outcome, "died")
    }


def switch_lines(files: list[str]) -> list[Change]:
    """The lines to change in the script and in what it imports of the user's own."""
    return [change for name in files for change in changes_in(Path(name))]


def _notes(request: Request, observed: dict[str, Any]) -> list[str]:
    notes = []
    if observed["steps"] < request.steps:
        notes.append(f"The script sets max_steps={observed['steps']}, so there were no more steps than that.")
    if "resumes" in observed:
        notes.append("The script resumes from a checkpoint of its own; here it began at the beginning, without it.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or "," in os.environ.get("CUDA_VISIBLE_DEVICES", ""):
        notes.append("The try used one process and one GPU, also where your training uses several.")
    if observed["steps"] < 3:
        notes.append("Too few steps to kill the training half-way: nothing was resumed.")
    return notes


def _has_accelerator() -> bool:
    return sys.platform == "darwin" or any(Path(name).exists() for name in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg"))
