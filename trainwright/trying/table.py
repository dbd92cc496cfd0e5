"""What a person reads: one table, the lines to change, the way back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trainwright.trying.plan import OURS, THEIRS

_REASONS = {
    "timeout": "did not end in time: raise --timeout, or lower --steps.",
    "never trained": "never called train(), so there is nothing to compare.",
    "error": "raised an error:",
    "left": "left before it trained:",
    "died": "ended without a word:",
    "elsewhere": "trains in a process that it starts; a try sees one process, and let that one train nothing.",
}

_BUSY = (
    "Note: Steps of one and the same run took very different times: the machine is busy with something else, or the "
    "data are uneven. Speeds, and what a save costs, mean little then: repeat it on an idle machine, or with more "
    "--steps."
)


def show(facts: dict[str, Any], console: Console) -> None:
    """Print the facts of a try."""
    if "failed" in facts:
        _show_failure(facts, console)
        return
    versions = facts["versions"]
    title = f"{facts['script']}: {facts['steps']} steps of {facts['model']} on {facts['device']}"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    table.add_column("")
    table.add_column(f"{THEIRS} {versions[THEIRS]}", overflow="fold")
    table.add_column(f"{OURS} {versions[OURS]}", overflow="fold")
    for row in rows(facts):
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    for line in _below(facts):
        console.print(escape(line), highlight=False, soft_wrap=True)


def rows(facts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The cells of the table."""
    speed, losses = facts["speed"], facts["losses"]
    theirs, ours = speed[THEIRS], speed[OURS]
    noisy, noise = speed["noisy"], " (within noise)" if speed["within_noise"] else ""
    found = [("loss at each step", _course(losses[THEIRS]), _compared(losses))]
    for name, key in (("samples per second", "samples_per_second"), ("tokens per second", "tokens_per_second")):
        if theirs[key] and ours[key]:
            # No percentage of what means little.
            compared = " (noisy, see below)" if noisy else f", {_percent(ours[key], theirs[key])}{noise}"
            found.append((name, _number(theirs[key]), f"{_number(ours[key])}{compared}"))

    def add(name: str, cells: Callable[[dict[str, Any]], str], by_library: dict[str, Any] = speed) -> None:
        found.append((name, cells(by_library[THEIRS]), cells(by_library[OURS])))

    add("time to the first step", lambda one: _seconds(one["first_step_seconds"]))
    add("a save delays training by", lambda one: _seconds(one["save_delay_seconds"]))
    add(f"train() in all, {ours['saves']} saves", lambda one: _seconds(one["train_seconds"]))
    add("peak memory", lambda one: _bytes(one["peak_memory_bytes"]))
    if theirs["peak_gpu_memory_bytes"] and ours["peak_gpu_memory_bytes"]:
        add("peak GPU memory", lambda one: _bytes(one["peak_gpu_memory_bytes"]))
    if facts["resume"]:
        add(f"killed at step {facts['resume'][OURS]['killed_after_step']}, resumed", _resumed, facts["resume"])
        found.append(("and back to transformers", "", _back(facts["back"])))
    return found


def _course(losses: list[float]) -> str:
    return f"{losses[0]:.4f} to {losses[-1]:.4f}" if losses else "none"


def _compared(losses: dict[str, Any]) -> str:
    if losses["equal"] and "cause" in losses:
        return f"the same, but not the {losses['cause']['name']}"
    if losses["equal"]:
        return f"the same, bit for bit ({len(losses[OURS])} of {len(losses[OURS])})"
    if "first_difference" not in losses:
        return f"{len(losses[OURS])} steps instead of {len(losses[THEIRS])}"
    first = losses["first_difference"]
    if losses["cause"]["name"] == "rounding":
        return f"the same up to rounding (largest difference {losses['largest_difference']:.1e})"
    words = "not comparable" if losses["agrees"] else "different"
    both = f"{first[THEIRS]:.6g} there, {first[OURS]:.6g} here"
    return f"{words} from step {first['step']} on: {both} ({losses['cause']['name']})"


def _resumed(facts: dict[str, Any]) -> str:
    if not facts["resumed"]:
        return "could not be resumed"
    if facts["equal"]:
        return f"from step {facts['resumed_from_step']} to the same losses and weights, bit for bit"
    if not facts["repeatable"]:
        return "cannot be told: the script gives other losses each time it runs"
    weights = facts["largest_weight_difference"]
    size = "unknown" if weights is None else f"{weights:.1e}"
    if facts["first_different_step"] is None:
        return f"the same losses; weights differ by up to {size}"
    return (
        f"other losses from step {facts['first_different_step']} on (by up to {facts['largest_loss_difference']:.1e}), "
        f"weights by up to {size}"
    )


def _back(facts: dict[str, Any] | None) -> str:
    if facts and facts["resumed"]:
        return f"transformers resumed from our checkpoint at step {facts['from_step']} and finished"
    return "transformers could not resume from our checkpoint"


def _below(facts: dict[str, Any]) -> list[str]:
    """What stands under the table."""
    lines = []
    if cause := facts["losses"].get("cause"):
        what = "the gradients" if facts["losses"]["equal"] else "the losses"
        lines += [f"Why {what} differ: {cause['text']} ({cause['page']})", ""]
    for library in (THEIRS, OURS):
        if error := facts["resume"].get(library, {}).get("error"):
            lines += [f"Why {library} could not resume:", *(f"  {line}" for line in error), ""]
    if facts["back"] and "error" in facts["back"]:
        lines += ["Why transformers could not resume from our checkpoint:"]
        lines += [*(f"  {line}" for line in facts["back"]["error"]), ""]
    lines += [f"Note: {note}" for note in facts["notes"]]
    if facts["speed"]["noisy"]:
        lines.append(_BUSY)
    lines.append(
        "Not run: evaluations (eval_loss is a mean over targets here, over batches with transformers), and what comes "
        "after train(). Learning rates follow a schedule over these steps. "
        "What the Trainer writes went into a temporary folder."
    )
    return [*lines, "", *_switch(facts["switch"]), "", *_going_back(bool(facts["switch"]))]


def _switch(changes: list[dict[str, Any]]) -> list[str]:
    if not changes:
        return ["To switch: none of your files imports transformers' Trainer; start it with `trainwright run SCRIPT`."]
    lines = ["To switch:"]
    for change in changes:
        lines.append(f"  {_short(change['file'])}:{change['line']}")
        lines += [f"  - {line}" for line in change["before"] if line not in change["after"]]
        lines += [f"  + {line}" for line in change["after"] if line not in change["before"]]
    return lines


def _going_back(is_changed: bool) -> list[str]:
    first = "undo that" if is_changed else "start it as before"
    setting = 'TrainingArguments(checkpoint_format="hf")' if is_changed else "TRAINWRIGHT_CHECKPOINT_FORMAT=hf"
    return [
        f"To go back: {first}, and resume from an export. `trainwright export runs/mine/checkpoint-500 --to hf` writes",
        "runs/mine/exported/checkpoint-500 for transformers. (It would take checkpoint-500 itself, too, but with a new",
        f"optimizer, and without a word.) With {setting} every checkpoint is such a one.",
    ]


def _short(file: str) -> str:
    return os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file


def _show_failure(facts: dict[str, Any], console: Console) -> None:
    failed = facts["failed"]
    where = {"never trained": "", "elsewhere": "", THEIRS: " on transformers itself", OURS: " on trainwright"}
    who = f"{facts['script']}{where[failed['reason'] if failed['reason'] in where else failed['library']]}"
    console.print(escape(f"{who} {_REASONS[failed['reason']]}"), highlight=False, soft_wrap=True)
    for line in failed["lines"]:
        console.print(escape(f"  {line}"), highlight=False, soft_wrap=True)
    if failed["library"] == OURS:
        console.print(
            "With transformers it trained, as far as a try goes (evaluations are off). If it trains and evaluates "
            "there without a try too, please report it (docs/try.md, What to report).",
            highlight=False,
            soft_wrap=True,
        )
    console.print(escape(f"Everything it said: {failed['log']}"), highlight=False, soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(value: float, base: float) -> str:
    return f"{100 * (value / base - 1):+.0f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return "not seen"
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def _bytes(value: int | None) -> str:
    if value is None:
        return "not known"
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
