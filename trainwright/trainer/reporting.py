"""Trainer methods that scripts call to show and store metrics."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from trainwright.config.run_directory import run_directory
from trainwright.config.secrets import redacted_values
from trainwright.core.run_files import replace_text
from trainwright.trainer.foundation import Foundation


class ReportingMethods(Foundation):
    """``log_metrics``, ``save_metrics``, ``save_state``: what every example script ends with."""

    def metrics_format(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Readable values: times as h:mm:ss, memory in MB, floats with four digits."""
        return {name: _readable(name, value) for name, value in metrics.items()}

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print a block of metrics, aligned."""
        if not self.is_world_process_zero():
            return
        shown = self.metrics_format(metrics)
        name_width = max((len(name) for name in shown), default=0)
        value_width = max((len(str(value)) for value in shown.values()), default=0)
        print(f"***** {split} metrics *****")
        for name in sorted(shown):
            print(f"  {name:<{name_width}} = {shown[name]!s:>{value_width}}")

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write ``<split>_results.json`` and, if ``combined``, merge into ``all_results.json``."""
        if not self.is_world_process_zero():
            return
        folder = run_directory(self.args)
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / f"{split}_results.json", metrics)
        if combined:
            everything = folder / "all_results.json"
            stored = json.loads(everything.read_text()) if everything.is_file() else {}
            _write_json(everything, stored | metrics)

    def save_state(self) -> None:
        """Write ``trainer_state.json`` into the output directory."""
        if self.is_world_process_zero():
            folder = run_directory(self.args)
            folder.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(folder / "trainer_state.json")

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0


def _readable(name: str, value: Any) -> Any:
    if "_mem_" in name:
        return f"{value >> 20}MB"
    if "_runtime" in name:
        return str(datetime.timedelta(seconds=int(value)))
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value


def _write_json(path: Path, values: dict[str, Any]) -> None:
    replace_text(path, json.dumps(redacted_values(values), indent=4, sort_keys=True) + "\n")
