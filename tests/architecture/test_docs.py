"""The documents are true: links lead somewhere, tests named exist, examples run, pages made from code are current."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.config.reference import arguments_page
from trainwright.recipes.reference import reference

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "bench/RESULTS.md",
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_tests_exist(page: Path) -> None:
    # A block that begins with a path is a file that the reader writes.
    text = re.sub(r"^```\w+\n# \S+\.py\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    # This table names the files of another repository.
    text = re.sub(r"<!-- made by bench/originals -->.*?<!-- end -->", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    for path, name in re.findall(r"\b((?:tests|bench|examples|trainwright)/[\w/]+\.py)(?:::(\w+))?", text):
        assert (ROOT / path).is_file(), path
        if name:
            names = {
                node.name
                for node in ast.walk(ast.parse((ROOT / path).read_text()))
                if isinstance(node, ast.FunctionDef)
            }
            assert name in names, f"{path}::{name}"
    for module in re.findall(r"python -m ((?:tests|trainwright)(?:\.\w+)+)", text):
        assert importlib.util.find_spec(module) is not None, module


def test_every_promise_has_a_row() -> None:
    rows = re.findall(r"^\| ([SAHPM]\d+) \| .+ \| (.+) \|$", (ROOT / "docs/features.md").read_text(), re.MULTILINE)
    counts = {letter: sum(key[0] == letter for key, _ in rows) for letter in "SAHPM"}
    assert counts == {"S": 18, "A": 44, "H": 76, "P": 21, "M": 26}
    assert len({key for key, _ in rows}) == 185
    assert all(shown.startswith(("`tests/", "planned: ", "refused", "on torch: ", "`report_to")) for _, shown in rows)


def test_the_page_of_arguments_is_current() -> None:
    assert (ROOT / "docs/arguments.md").read_text() == arguments_page(), (
        "run: python -m trainwright.config.reference > docs/arguments.md"
    )


def test_the_page_of_modifiers_is_current() -> None:
    assert (ROOT / "docs/modifiers.md").read_text() == reference(), (
        "run: python -m trainwright.recipes.reference > docs/modifiers.md"
    )


MODULES = [
    "config.backends",
    "config.cadence",
    "config.deepspeed",
    "config.keywords",
    "config.options",
    "config.patterns",
    "config.registry",
    "config.secret_forms",
    "config.secret_names",
    "config.secrets",
    "config.yaml12",
    "randomness.global_generators",
    "core.events",
    "core.stops",
    "core.state",
    "core.callback",
    "core.results",
    "callbacks.early_stopping",
    "callbacks.monitor",
    "checkpoint.directory",
    "checkpoint.states",
    "checkpoint.models",
    "compat.accmt.cadence",
    "compat.accmt.collate_fns",
    "compat.accmt.debugging",
    "compat.accmt.decorators",
    "compat.accmt.handlers",
    "compat.accmt.hyperparameters",
    "compat.accmt.metrics",
    "compat.accmt.modules",
    "compat.accmt.monitor",
    "compat.accmt.samplers",
    "compat.accmt.savings",
    "compat.accmt.status",
    "compat.accmt.strategies",
    "compat.accmt.this_process",
    "compat.accmt.trainer",
    "compat.accmt.utils.data",
    "compat.accmt.utils.misc",
    "compat.pymarlin.core.trainer_backend",
    "compat.pymarlin.utils.checkpointer.checkpoint_utils",
    "compat.pymarlin.utils.distributed",
    "compat.pymarlin.utils.stats.basic_stats",
    "compat.sparseml.arguments",
    "compat.sparseml.grad_sampler",
    "compat.sparseml.manager",
    "compat.sparseml.metadata",
    "compat.sparseml.phases",
    "compat.sparseml.scheduled_optimizer",
    "compat.sparseml.trainer",
    "core.checkpointer",
    "experiment.hub",
    "experiment.tasks.base",
    "training.checked_metrics",
    "training.first_step.scene",
    "config.batch_sizes",
    "core.microbatching",
    "core.module",
    "data.chat.collator",
    "data.chat.shapes",
    "data.composing",
    "data.labels",
    "data.curriculum",
    "data.sharding",
    "engines.graph.strided",
    "engines.torch.backends",
    "engines.torch.split_batch",
    "engines.torch.loss_functions.base",
    "engines.torch.loss_functions.choosing",
    "engines.torch.loss_functions.class_weights",
    "engines.torch.loss_functions.classification",
    "engines.torch.loss_functions.embeddings",
    "engines.torch.loss_functions.ordinal",
    "engines.torch.loss_functions.overlap",
    "engines.torch.loss_functions.several_classes",
    "engines.torch.loss_functions.triplets",
    "engines.torch.regularisers.mixing",
    "engines.torch.regularisers.noise",
    "engines.torch.regularisers.perturbing",
    "engines.torch.regularisers.two_passes",
    "engines.torch.memory",
    "engines.torch.joint",
    "engines.torch.logged",
    "engines.torch.module",
    "engines.torch.randomness",
    "core.tracker",
    "recipes.pruning.acdc",
    "recipes.pruning.base",
    "recipes.pruning.channels",
    "recipes.pruning.constant",
    "recipes.pruning.cutting",
    "recipes.pruning.fisher",
    "recipes.pruning.layers",
    "recipes.pruning.magnitude",
    "recipes.pruning.masks",
    "recipes.pruning.mfac",
    "recipes.pruning.movement",
    "recipes.pruning.obs",
    "recipes.pruning.optimizer_state",
    "recipes.pruning.patterns",
    "recipes.pruning.powerpropagation",
    "recipes.pruning.rigl",
    "recipes.pruning.sparsity",
    "recipes.pruning.structured",
    "recipes.pruning.surgeon",
    "recipes.pruning.thinning",
    "recipes.pruning.topkast",
    "trackers",
    "trackers.naming",
    "trackers.pictures",
    "trackers.servers",
    "launch.notes",
    "launch.slurm",
    "launch.target",
    "launch.torchrun",
    "core.errors",
    "core.marker",
    "recipes.export.exporting",
    "recipes.export.semi_structured",
    "experiment.exporting",
    "recipes.language.arguments",
    "recipes.language.composing",
    "recipes.language.describing",
    "recipes.language.expressions",
    "recipes.language.metadata",
    "recipes.language.plain",
    "recipes.language.reading",
    "recipes.language.records",
    "recipes.language.sources",
    "recipes.language.spelling",
    "recipes.language.timeline",
    "recipes.language.variables",
    "recipes.language.writing",
    "recipes.oneshot",
    "recipes.recomputing",
    "recipes.quantization.calibrating",
    "recipes.quantization.choosing",
    "recipes.quantization.modifier",
    "recipes.quantization.quantizers",
    "recipes.quantization.rounding",
    "recipes.quantization.schemes",
    "training.keep_best",
    "core.phases",
    "data.phased",
    "data.numbered",
    "engines.torch.ensembles.averaging",
    "engines.torch.ensembles.bags",
    "engines.torch.ensembles.combining",
    "engines.torch.ensembles.ensemble",
    "experiment.souping",
    "trainer.calibrating",
    "search.inheriting",
    "search.sweep",
    "trainer.seeded_sampler",
    "plots.search",
    "proving.formats",
    "proving.result",
    "trainer.trainer",
    "engines.torch.checksum",
    "engines.torch.rehearsal.estimate",
    "engines.torch.rehearsal.ledger",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"trainwright.{name}")
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = [test for test in finder.find(module) if test.examples]
    assert tests
    for test in tests:
        assert runner.run(test).failed == 0


#: Pages whose blocks of Python make one script, from top to bottom.
SCRIPTS = [
    "backends.md",
    "batches-that-fit.md",
    "by-name.md",
    "distributed.md",
    "engines.md",
    "from-accmt.md",
    "from-pymarlin.md",
    "from-sparseml.md",
    "modules.md",
    "recipes.md",
    "trackers.md",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_code_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / name).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    exec("\n".join(blocks), {"__name__": "__main__"})


#: Pages that are followed like a person at a shell would: named files are written, commands run, from top to bottom.
WALKS = ["chat.md", "ensembles.md", "experiments.md", "images-and-sounds.md", "losses.md", "phases.md", "search.md"]


@pytest.mark.full
@pytest.mark.parametrize("name", WALKS)
def test_pages_can_be_followed(name: str, tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```(sh|yaml|python)\n(.*?)^```$", (ROOT / "docs" / name).read_text(), re.MULTILINE | re.DOTALL
    )
    assert any(kind == "sh" for kind, _ in blocks)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["HF_DATASETS_CACHE"] = str(tmp_path / "cache")
    for kind, text in blocks:
        if kind != "sh":
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
            continue
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
@pytest.mark.filterwarnings("ignore")
def test_examples_run(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: a new one would take longer to import torch than most examples take to run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out
