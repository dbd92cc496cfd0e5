"""Runs as they lie on disk, written without training; names in them may be anything."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml

#: Names and samples that would do something in a page, a terminal or a table, if anybody let them.
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><iframe src='http://127.0.0.1:9/'></iframe>",
    "javascript:alert(1)",
    "\x1b[2J\x1b]0;owned\x07",
    "a|b\n\n# heading\n![x](http://127.0.0.1:9/x.png)",
    "$\\frac{1}{$",
    "\u202egnp.exe\u2028\x00\ud800",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "_hidden",
]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def stored_run(folder: Path, *, steps: int = 20, state: str = "finished", name: str = "accuracy") -> Path:
    """A run of so many logged steps; ``name`` is that of its metric."""
    folder.mkdir(parents=True)
    now = time.time()
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        lines.append({"step": step, "time": now, "loss": 2 / step, "grad_norm": 1.0, "learning_rate": 1e-3 / step})
        if step % 5 == 0:
            lines.append({"step": step, "time": now, "eval_loss": 1 / step, f"eval_{name}": 1 - 1 / step})
    write_lines(folder / "metrics.jsonl", lines)
    laps = [
        {
            "step": step,
            "steps": 1,
            "time": now + step,
            "start": now,
            "seconds": {"train": 1.0, "data": 0.1, "save": 0.1, "evaluate": 0.2},
            "tokens_per_second": 1000.0,
            "memory": 2**30 + step,
        }
        for step in range(1, steps + 1)
    ]
    write_lines(folder / "performance.jsonl", laps)
    events = [{"time": now, "kind": "saved", "step": steps, "message": f"checkpoint-{steps} is saved."}]
    if state == "failed":
        events.append(
            {"time": now + 100, "kind": "failed", "step": steps, "message": f"ValueError at step {steps}: no"}
        )
    write_lines(folder / "events.jsonl", events)
    config = {"output_dir": str(folder), "learning_rate": 1e-3, "seed": 1, "metric_for_best_model": name}
    config["greater_is_better"] = True
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    record = {"best_metric": 1 - 1 / max(steps - steps % 5, 1), "global_step": steps, "log_history": []}
    (folder / "trainer_state.json").write_text(json.dumps(record))
    (folder / "run.json").write_text(json.dumps({"id": "0123abcd", "began": now, "owns_unnamed": True}))
    if state == "finished":
        (folder / "finished.json").write_text(json.dumps({"step": steps, "max_steps": steps, "time": now}))
    if state == "stopped":
        stopped = {"reason": "SIGTERM", "step": steps, "checkpoint": None, "code": 75, "time": now}
        (folder / "preempted.json").write_text(json.dumps(stopped))
    return folder


def hostile_run(folder: Path) -> Path:
    """Every place of a run that holds words, filled with :data:`HOSTILE`."""
    stored_run(folder, name=HOSTILE[0])
    now = time.time()
    logged = [{"step": step, **{text: float(step) for text in HOSTILE}} for step in range(1, 6)]
    logged += [{"step": step, **{f"eval_{text}": float(step) for text in HOSTILE}} for step in range(1, 6)]
    write_lines(folder / "metrics.jsonl", logged)
    costs = {"plain": {"seconds": HOSTILE[0], "bytes": -1e999}, "accelerated": {"seconds": 1e308, "bytes": HOSTILE[0]}}
    accelerated = {"kind": "acceleration", "message": HOSTILE[0], "left_out": dict(zip(HOSTILE, HOSTILE, strict=True))}
    write_lines(
        folder / "events.jsonl",
        [
            *({"time": now, "kind": text, "step": text, "message": text} for text in HOSTILE),
            {"time": now, "step": 1, **accelerated, "gain": costs},
        ],
    )
    counts_of = {"low": 0.0, "high": 1.0, "counts": [1, 2]}
    write_lines(
        folder / "histograms.jsonl",
        [{"step": step, "gradients": dict.fromkeys(HOSTILE, counts_of), "weights": HOSTILE} for step in (1, 2, 3)],
    )
    (folder / "profile").mkdir()
    profile = "\n\n".join([*HOSTILE, "| a | b |\n|---|---|\n" + "\n".join(f"| {text} | 1 |" for text in HOSTILE)])
    (folder / "profile" / "summary.md").write_bytes(profile.encode("utf-8", "surrogatepass"))
    write_lines(
        folder / "samples.jsonl",
        [
            {"step": step, "kind": kind, "input": text, "label": text, "prediction": text}
            for text in HOSTILE
            for kind in ("text", "image")
            for step in (1, 2)
        ],
    )
    samples = [{"index": text, "input": text, "image": text, "label": text, "prediction": text} for text in HOSTILE]
    plain = [{"index": 1, "input": text, "label": text, "prediction": text, "loss": text} for text in HOSTILE]
    counts = [[1] * len(HOSTILE)] * len(HOSTILE)
    evaluation = {
        HOSTILE[0]: {"kind": "classification", "names": HOSTILE, "confusion": counts, "worst": samples, "step": 1},
        HOSTILE[1]: {"kind": "regression", "targets": [1, 2, 3], "predictions": [1, 2, 3], "worst": plain},
    }
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    layers = [{"name": text, "weights": 10, "sparsity": 0.5, "bits": text} for text in HOSTILE]
    (folder / "layers.json").write_text(json.dumps({"layers": layers}))
    table = {"title": HOSTILE[0], "head": HOSTILE, "rows": [HOSTILE]}
    (folder / "tables.json").write_text(json.dumps({"tables": [table]}))
    (folder / "recipe.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    config = {text: text for text in HOSTILE} | {"metric_for_best_model": HOSTILE[0]}
    (folder / "config.yaml").write_text(json.dumps(config))
    environment = {"command": HOSTILE, "packages": {text: text for text in HOSTILE}, "git": {"commit": HOSTILE[0]}}
    (folder / "env.json").write_text(json.dumps({**environment, HOSTILE[1]: HOSTILE[2]}))
    change = {"step": 1, "what": HOSTILE[0], "from": HOSTILE[1], "to": HOSTILE[2], "effect": HOSTILE[0]}
    write_lines(folder / "config.history.jsonl", [change])
    return folder
