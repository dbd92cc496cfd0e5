"""SparseML: its tests of recipes, managers and modifiers, and every recipe in its repository."""

from __future__ import annotations

from bench.originals.cases import Case, Change, Door

_TESTS = "tests/sparseml"
_TORCH = f"{_TESTS}/pytorch"
_KINDS = f"{_TORCH}/sparsification"

#: Folder or document -> recipes that are read, and those that are refused by name.
_RECIPES = {
    "examples": (0, 2),
    "integrations/huggingface-transformers": (0, 1),
    "integrations/old-examples": (18, 0),
    "integrations/torchvision": (5, 0),
    "research": (27, 0),
    "src": (2, 3),
    "tests": (10, 15),
    "docs/source/recipes.md": (8, 0),
    "integrations/huggingface-transformers/README.md": (2, 0),
    "integrations/huggingface-transformers/tutorials/question-answering/question-answering-cli.md": (2, 0),
    "integrations/huggingface-transformers/tutorials/sentiment-analysis/sentiment-analysis-cli.md": (2, 0),
    "integrations/huggingface-transformers/tutorials/sparse-transfer-learning-bert-python.md": (1, 0),
    "integrations/huggingface-transformers/tutorials/sparse-transfer-learning-bert.md": (2, 0),
    "integrations/huggingface-transformers/tutorials/text-classification/text-classification-cli.md": (3, 0),
    "integrations/huggingface-transformers/tutorials/token-classification/token-classification-cli.md": (2, 0),
    "integrations/torchvision/README.md": (1, 0),
    "integrations/torchvision/tutorials/sparse-transfer-learning.md": (1, 0),
    "integrations/ultralytics-yolov5/README.md": (1, 0),
    "integrations/ultralytics-yolov5/tutorials/sparse-transfer-learning.md": (1, 0),
    "integrations/ultralytics-yolov5/tutorials/sparsify-from-scratch.md": (1, 0),
    "integrations/ultralytics-yolov8/README.md": (1, 0),
    "integrations/ultralytics-yolov8/tutorials/sparse-transfer-learning.md": (1, 0),
    "research/mfac/README.md": (1, 0),
    "src/sparseml/openpifpaf/README.md": (1, 0),
}
#: What else stands there.
_BESIDES = {
    "integrations/old-examples": "; `mobilenet-pruned_quant.md` names an anchor that it lacks, for SparseML too",
    "integrations/torchvision": "; `e2e_recipe.yaml` with the `recipe_args` of its script",
    "docs/source/recipes.md": "; one is a fragment",
}

_MASKS = "from trainwright.compat.sparseml.pytorch.sparsification import GroupedPruningMaskCreator\n"
_HELPERS = Change(
    _MASKS,
    "# no mask creators\n",
    "the shared `helpers.py` without its import of a mask creator, which is internal",
    f"{_KINDS}/pruning/helpers.py",
)
_PRIVATE = "asks for attributes that begin with `_`"


def _recipes(folder: str, read: int, refused: int) -> Case:
    if not read:
        return Case(folder, note="recipes", refused=f"{refused} of one-shot compression, refused by name")
    command = ("-m", "bench.originals.sparseml_recipes", "{copy}", folder, str(read), str(refused))
    more = f", {refused} of one-shot compression refused by name" if refused else ""
    return Case(
        folder,
        command,
        note=f"{read} recipe{'s' * (read > 1)} read, written and read again{more}{_BESIDES.get(folder, '')}",
    )


def _pruning(kind: str, **failing: str) -> Case:
    return Case(f"{_KINDS}/pruning/test_modifier_pruning_{kind}.py", changes=(_HELPERS,), failing=failing)


_LANGUAGE = (
    Case(f"{_TESTS}/optim/test_manager.py"),
    Case(f"{_TESTS}/optim/test_modifier.py"),
    Case(
        f"{_TESTS}/optim/test_helpers.py",
        failing={
            "test_evaluate_recipe_yaml_str_equations": "its recipes have a key twice, which is an error here",
            "test_update_recipe_variables": "the same",
            "test_load_recipe_yaml_str_zoo": "the SparseZoo is gone",
        },
    ),
    Case(f"{_TESTS}/optim/test_analyzer.py", refused="layer descriptions of analyzers are internal"),
    Case(f"{_TESTS}/optim/test_sensitivity.py", refused="sensitivity analyses are not here"),
    Case(
        f"{_TORCH}/optim/test_manager.py",
        failing={
            "test_lifecycle_manager_staged": "1 of 7 recipes: quantization and rates do not end with their stage",
        },
    ),
    Case(f"{_TORCH}/optim/test_optimizer.py"),
    Case(f"{_TORCH}/optim/test_modifier_optimizer.py"),
    Case(f"{_TORCH}/optim/test_analyzer_*.py, test_sensitivity_*.py", refused="analyzers are not here"),
    Case(f"{_TORCH}/optim/test_mask_*.py", refused="mask creators and scorers are internal"),
)

_TRAINING = (
    Case(f"{_KINDS}/test_modifier.py"),
    Case(f"{_KINDS}/test_info.py", refused="`sparsification_info` describes an installation of SparseML"),
    Case(
        f"{_KINDS}/test_modifier_thinning.py",
        refused="builds its networks with `sparseml.onnx` and `sparseml.pytorch.models`",
    ),
    Case(f"{_KINDS}/training/test_modifier_epoch.py"),
    Case(f"{_KINDS}/training/test_modifier_logging.py"),
    Case(
        f"{_KINDS}/training/test_modifier_lr.py",
        failing={
            "test_lifecycle": "`update_frequency` of a LearningRateFunctionModifier acts",
            "test_props_end": "an end before a milestone is refused when it is set",
        },
    ),
    Case(
        f"{_KINDS}/training/test_modifier_params.py",
        failing={"test_lifecycle": "what is to learn later is in the optimizer from the start"},
    ),
    Case(f"{_KINDS}/distillation/test_modifier_distillation.py"),
    Case(
        f"{_KINDS}/distillation/test_per_layer_distillation.py",
        changes=(
            Change(
                "from trainwright.compat.sparseml.pytorch.models.classification.resnet import resnet18\n",
                "def resnet18(pretrained):\n    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),"
                " nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))\n",
                "a small network for the zoo's resnet18",
            ),
            Change(
                "from trainwright.compat.sparseml.pytorch.sparsification.distillation.modifier_per_layer import (\n"
                "    DISTILL_PARAM_GROUP_KEY,\n)\n",
                'DISTILL_PARAM_GROUP_KEY = "distillation"\n',
                "no key of its internal state",
            ),
        ),
        failing={
            "test_different_sizes_without_projection_raises_error": "an error, in other words and earlier",
            "test_different_structure_raises_error": "an error, in other words",
            "test_distillation_modifier_yaml": "`update_frequency` of a teacher is refused",
            "test_modifier_load_before_forward_pass": "state has other keys",
            "test_optimizer_serialization_with_projections": "projections are a group of their own in the optimizer",
        },
    ),
)

_PRUNING = (
    _pruning("magnitude", test_lifecycle=_PRIVATE),
    _pruning("constant"),
    _pruning(
        "movement",
        test_lifecycle="`applied_sparsity` counts whole weights: near, not equal",
        test_movement_pruning_yaml="no mask is called 'block'",
    ),
    _pruning("acdc", test_lifecycle=_PRIVATE, test_momentum_mechanism=_PRIVATE),
    _pruning("obs", test_lifecycle=_PRIVATE, test_obs_pruning_yaml=_PRIVATE),
    _pruning("mfac", test_lifecycle=_PRIVATE, test_mfac_pruning_yaml=_PRIVATE),
    _pruning("rigl", test_lifecycle=_PRIVATE, test_rigl_pruning_yaml="one sparsity for all weights"),
    _pruning(
        "topkast",
        test_lifecycle=_PRIVATE,
        test_topkast_forward_masking=_PRIVATE,
        test_topkast_gradient_masking=_PRIVATE,
        test_weight_decay=_PRIVATE,
    ),
    Case(
        f"{_KINDS}/pruning/test_modifier_pruning_layer.py",
        changes=(
            Change(
                "from trainwright.compat.sparseml.pytorch.nn import Identity",
                "from torch.nn import Identity",
                "torch's Identity",
            ),
        ),
        failing={"test_lifecycle": _PRIVATE},
    ),
    Case(f"{_KINDS}/pruning/test_modifier_pruning_structured.py", refused="asks mask creators, which are internal"),
    Case(
        f"{_KINDS}/pruning/test_modifier_powerpropagation.py", refused="asks for the wrapper that it puts around layers"
    ),
    Case(f"{_KINDS}/pruning/test_mask_creator.py, test_mask_params.py, test_mfac_inverse.py", refused="internal"),
)

_QUANTIZATION = (
    Case(f"{_KINDS}/quantization/test_yaml_load_quantization_modifiers.py"),
    Case(
        f"{_KINDS}/quantization/test_legacy_modifier_quantization.py",
        failing={
            "test_lifecycle": "looks for the qconfigs of torch.ao.quantization in layers",
            "test_quantization_modifier_yaml": "functions are not called by name from a recipe",
            **dict.fromkeys(
                (
                    *("test_initialize", "test_props", "test_update", "test_log_update", "test_loss_update"),
                    *("test_optimizer_pre_step", "test_optimizer_post_step", "test_start_pending", "test_end_pending"),
                    *("test_update_ready", "test_scheduled_update", "test_scheduled_log_update"),
                ),
                "of 13, one that leaves no layer to quantize is refused",
            ),
        },
    ),
    Case(
        f"{_KINDS}/quantization/test_quantization_scheme.py",
        failing={
            "test_quantization_args_from_dict": "no pydantic models",
            "test_quantization_args_get_observer": "no observers of torch.ao.quantization",
            "test_quantization_scheme_from_dict": "no pydantic models",
        },
    ),
    Case(
        f"{_KINDS}/quantization/test_modifier_quantization.py, test_helpers.py, test_quantize_qat_export.py",
        refused="look for the wrappers and qconfigs of torch.ao.quantization in layers",
    ),
)

DOOR = Door(
    name="SparseML",
    page="docs/from-sparseml.md",
    imports=(
        (r"^(\s*)from sparseml(?=[.\s])", r"\1from trainwright.compat.sparseml"),
        (r"^(\s*)import sparseml$", r"\1import trainwright.compat.sparseml as sparseml"),
    ),
    cases=(*_LANGUAGE, *_TRAINING, *_PRUNING, *_QUANTIZATION, *(_recipes(name, *n) for name, n in _RECIPES.items())),
    unneeded=("utils", "docker"),
)
