"""MindNLP's document of the Trainer, and which of its examples are out of reach.

The document's complete example is run as it stands there, with its data set, model and metric made up and local. Run it
with a Python that has MindSpore: .venv-mindspore/bin/python -m bench.originals mindnlp path/to/mindnlp
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.originals.cases import Case, Change, Door

ROOT = Path(__file__).parents[2]
DOCUMENT = "docs/en/tutorials/use_trainer.md"
LOCAL = "a data set, a model and a metric on this machine"
MODELS = "it is written for models of MindNLP 0.4 (`mindnlp.transformers`) and MindSpore's data pipelines"
NOTEBOOK = "a notebook, and it is written for MindNLP 0.4's models and MindSpore's data pipelines"
SENTENCES = (
    "63 scripts train with sentence-transformers' own trainers, and an installed package keeps transformers' Trainer "
    "and torch; `trainwright run` gives it ours, on torch ([libraries](libraries.md))"
)


def prepare(copy: Path, data: Path) -> Mapping[str, str]:
    """Make the data, and write the document's complete example down as a script."""
    subprocess.run([sys.executable, ROOT / "examples/mindnlp/prepare.py", data], check=True, capture_output=True)
    text = (copy / DOCUMENT).read_text(encoding="utf-8")
    blocks = re.findall(r"## Complete Example\s+```python\n(.*?)```", text, flags=re.DOTALL)
    (copy / "use_trainer.py").write_text(re.sub(r"^import mindnlp$", _IMPORT, blocks[0], flags=re.MULTILINE))
    return {"DATA": str(data)}


_IMPORT = "import os\nimport trainwright.compat.mindnlp"
_DATA = 'os.environ["DATA"]'
_FILES = '{p: os.environ["DATA"] + "/" + p + ".jsonl" for p in ("train", "test")}'
_CHANGES = (
    ('load_dataset("imdb")', f'load_dataset("json", data_files={_FILES})'),
    ('"bert-base-uncased"', f'{_DATA} + "/bert"'),
    ('evaluate.load("accuracy")', f'evaluate.load({_DATA} + "/accuracy")'),
    ("select(range(200))", "select(range(100))"),
    ("select(range(1000))", "select(range(200))"),
)

DOOR = Door(
    name="mindnlp",
    page="docs/from-mindnlp.md",
    imports=(),
    unneeded=("src", "tests", "benchmarks"),
    prepare=prepare,
    cases=(
        Case(
            DOCUMENT,
            ("{copy}/use_trainer.py",),
            note="the complete example",
            changes=tuple(Change(old, new, LOCAL, "use_trainer.py") for old, new in _CHANGES),
        ),
        Case("docs/en/tutorials/quick_start.md", refused=MODELS),
        Case(
            "docs/en/tutorials/peft.md",
            refused="a loop of one's own with `mindspore.value_and_grad`: nothing of the Trainer",
        ),
        Case("notebooks/2.use_trainer.ipynb", refused=NOTEBOOK),
        Case("examples/transformers", refused=f"{MODELS} (scripts and notebooks of 12 models)"),
        Case("examples/tasks", refused=NOTEBOOK),
        Case("examples/peft", refused=MODELS),
        Case("examples/open_r1", refused="it trains with TRL, an installed package, which keeps transformers' Trainer"),
        Case("examples/sentence_transformers", refused=SENTENCES),
    ),
)
