"""Names of SparseML that are not here, and what to use instead."""

from __future__ import annotations

from typing import NoReturn

_AUTO = "load the model with transformers.AutoModelFor...from_pretrained and pass it to Trainer"
INSTEAD = {
    "DisableHalfPrecisionCallback": "nothing: recipes work in every precision",
    "GradSampler": "grad_sampler= of modify() or apply(), or trainwright.recipes.oneshot.gradients_of",
    "QuestionAnsweringTrainer": "subclass Trainer as trainer_qa.py in transformers' examples does",
    "RecipeManagerTrainerInterface": "subclass Trainer",
    "SparseAutoConfig": "transformers.AutoConfig",
    "SparseAutoModel": _AUTO,
    "SparseAutoModelForCausalLM": _AUTO,
    "SparseAutoTokenizer": "transformers.AutoTokenizer",
    "TrainerInterface": "subclass Trainer",
    "TransformersTrainer": "trainwright.Trainer",
    "export_onnx": "ModuleExporter(model, folder).export_onnx(sample_batch)",
    "get_shared_tokenizer_src": "load the student's tokenizer; a teacher's own goes into distill_teacher: columns",
    "oneshot": "trainwright.recipes.oneshot.apply_recipe, or `trainwright recipe apply`",
    "postprocess_qa_predictions": "utils_qa.py in transformers' examples has it",
    "export": "trainwright.recipes.export.exporting.export_model, or `trainwright export`",
}


def refuse(module: str, name: str) -> NoReturn:
    """Say what takes the place of ``name``."""
    if name in INSTEAD:
        raise ImportError(f"{name} is not in {module}: {INSTEAD[name]}.")
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
