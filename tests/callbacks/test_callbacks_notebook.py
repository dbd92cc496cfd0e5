"""In a real notebook kernel a training shows a table and a curve; no bars, no stream of lines."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

CELL = """
import torch
from trainwright import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)

rows = [{"x": torch.randn(2), "labels": torch.tensor(i % 2)} for i in range(32)]
args = TrainingArguments("run", max_steps=12, logging_steps=3, eval_strategy="steps", eval_steps=6, use_cpu=True)
trainer = Trainer(Net(), args, train_dataset=rows, eval_dataset=rows[:8])
output = trainer.train()
"""


@pytest.mark.slow
def test_a_table_and_a_curve(tmp_path: Path) -> None:
    notebook: Any = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(CELL), nbformat.v4.new_code_cell("trainer.evaluate()")]
    )
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    (page,) = [output for output in outputs if output.output_type == "display_data"]
    text = page["data"]["text/html"]
    found = re.search(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)"', text)
    assert found is not None
    assert found[1] == "loss and eval_loss over the steps"
    svg = base64.b64decode(found[2]).decode()
    # Each has its line and its name, drawn by matplotlib.
    assert [f"> {name}</text>" in svg for name in ("loss", "eval_loss")] == [True, True]
    assert "<th>loss</th>" in text
    assert "<th>eval_loss</th>" in text
    assert [f"<td>{step}</td>" in text for step in (3, 6, 9, 12)] == [True] * 4
    assert "trained 12 steps" in text
    printed = "".join(output.get("text", "") for output in outputs if output.output_type == "stream")
    assert "step 3/12" not in printed
    # Evaluating by itself says its numbers in a line.
    after = "".join(output.get("text", "") for output in notebook.cells[1].outputs if output.output_type == "stream")
    assert "eval_loss" in after
