"""House rules are tests: layers, sizes, what import costs, what the public names are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trainwright

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "trainwright").rglob("*.py"))

PUBLIC_NAMES = set(
    """
    BestRun BinaryCrossEntropyLoss Checkpoint Checkpointer ContrastiveLoss CrossEntropyLoss CutMix
    DataCollatorForLanguageModeling DataCollatorForMultipleChoice DataCollatorForPermutationLanguageModeling
    DataCollatorForSeq2Seq DataCollatorForTokenClassification DataCollatorForWholeWordMask
    DataCollatorWithFlattening DataCollatorWithPadding DataWords DefaultDataCollator DefaultFlowCallback
    DiceCrossEntropyLoss DiceLoss EMACallback EarlyStoppingCallback Ensemble EvalLoopOutput EvalPrediction Every
    ExportableState FGM FocalLoss GradientNoise HubStrategy InfoNCELoss IntervalStrategy KeepBest Loss Mixup
    Modifier Module Monitor NonFiniteError NotSavedError OptimizerNames OrdinalLoss Phase PredictionOutput Preempted
    PrinterCallback ProgressCallback RDrop RangeCurriculum RatioCurriculum SAM SamplePredictions SaveStrategy
    SchedulerType Seq2SeqTrainer Seq2SeqTrainingArguments StepPlan StepsCurriculum SupConLoss TrackedRun Tracker
    TrainOutput Trainer TrainerCallback TrainerControl TrainerState TrainingArguments TripletLoss __version__
    calibrate default_data_collator enable_full_determinism get_last_checkpoint load_experiment numbered register
    registered set_seed soup sweep
    """.split()  # noqa: SIM905
)


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


@pytest.mark.slow
def test_files_and_functions_stay_small() -> None:
    long_files = {str(p.relative_to(ROOT)): n for p in SOURCES if (n := len(p.read_text().splitlines())) > 400}
    assert long_files == {}
    long_functions = {
        f"{path.relative_to(ROOT)}:{f.name}": size
        for path in SOURCES
        for f in functions(path)
        if (size := (f.end_lineno or 0) - f.lineno + 1) > 60
    }
    assert long_functions == {}


def test_public_names_are_these() -> None:
    """A new public name is a promise: add it here on purpose."""
    assert set(trainwright.__all__) == PUBLIC_NAMES
    for name in trainwright.__all__:
        assert getattr(trainwright, name) is not None
    assert set(dir(trainwright)) == PUBLIC_NAMES
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        trainwright.Trainr  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import trainwright",
        "from trainwright import TrainingArguments; TrainingArguments('x', learning_rate=1e-4, report_to='none')",
        "from trainwright import TrainerCallback, EarlyStoppingCallback, IntervalStrategy",
        "import trainwright.loop.fit, trainwright.loop.evaluate, trainwright.cli",
    ],
)
def test_torch_is_left_out(code: str) -> None:
    heavy = ("torch", "transformers", "accelerate", "datasets")
    script = f"{code}\nimport sys\nprint([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.slow
def test_using_the_trainer_does_not_import_transformers() -> None:
    script = (
        "import trainwright, sys; trainwright.Trainer; print('transformers' in sys.modules, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]


def _loads_weights_only(call: ast.Call) -> bool:
    return any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in call.keywords)


@pytest.mark.slow
def test_nothing_is_unpickled_or_evaluated() -> None:
    """No load path runs code: no pickle, no eval, and torch.load only for `trainwright import`, weights only."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import) and any(
                a.name.split(".")[0] in ("pickle", "dill", "cloudpickle", "joblib") for a in node.names
            ):
                found.append(f"{path.name}:{node.lineno} import")
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "torch.load" and path.name == "reading.py" and _loads_weights_only(node):
                    # What `trainwright import` reads, which a person starts by hand.
                    continue
                if called in ("eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                    found.append(f"{path.name}:{node.lineno} {called}")
    assert found == []


def test_layers_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports"))]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stdout[-3000:]


WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
import trainwright

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {extras!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
for module in pkgutil.walk_packages(trainwright.__path__, "trainwright."):
    if not module.name.startswith({apart!r}) and not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            print(module.name)
"""


@pytest.mark.slow
def test_every_module_but_three_can_be_imported_without_optional_packages() -> None:
    """Somebody who uses one door does not need what another one needs."""
    extras = {"compressed_tensors", "torchao", "onnx", "onnxruntime", "onnxscript", "datasets", "transformers", "peft"}
    extras |= {"accelerate", "evaluate", "torchmetrics", "optuna", "ray", "sklearn", "PIL", "lightning", "deepspeed"}
    extras |= {
        "triton",
        "tensorboard",
        "wandb",
        "mlflow",
        "aim",
        "clearml",
        "comet_ml",
        "dvclive",
        "trackio",
        "matplotlib",
        "IPython",
    }
    apart = ("trainwright.engines.jax", "trainwright.engines.mindspore")
    script = WITHOUT_EXTRAS.format(extras=extras, apart=apart)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    # Triton comes with torch for GPUs; this one is imported on them alone.
    apart = (
        "engines.torch.acceleration.cross_entropy_kernel",
        "recipes.export.compressed",
        "recipes.export.onnx_graph",
    )
    assert done.stdout.split() == [f"trainwright.{name}" for name in apart]
