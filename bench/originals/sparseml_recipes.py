"""Read the recipes of a folder of SparseML's repository through the door, write them and read them again.

python -m bench.originals.sparseml_recipes path/to/copy folder read [refused]

Files are YAML, Markdown cards, and with ``folder`` ending in ``.md`` the recipes shown in a document. Ends with an
error unless ``read`` of them are read, and ``refused`` others are refused because they compress a language model after
its training.
"""

from __future__ import annotations

import re
import sys
import textwrap
import warnings
from pathlib import Path

from trainwright.compat.sparseml import ScheduledModifierManager

#: The original cannot read these either -> why.
BROKEN = {
    "mobilenet-pruned_quant.md": "found undefined alias",
    # A template with places to fill, two documents in one.
    "recipe_template/README.md": "more than one document",
    # Fragments without arguments that the original needs too.
    "docs/source/recipes.md": "TrainableParamsModifier needs trainable",
    "optimal_BERT_surgeon_oBERT/README.md": "OBSPruningModifier needs init_sparsity",
}
#: Variables without a value of their own: the script that goes with the recipe passes them.
VARIABLES = {"e2e_recipe.yaml": {"warm_up_epochs": 5, "start_quant_epoch": 3, "pruning_epochs": 5}}
#: Settings of a test, with a recipe as text in one of them.
_SETTINGS = re.compile(r"_configs/.*\.yaml$")
_CARD = re.compile(r"\s*(<!--.*?-->\s*)*(---|\+\+\+)\s*\n", re.DOTALL)
_SHOWN = re.compile(r"^\s*```[^\n]*\n(.*?)```", re.DOTALL | re.MULTILINE)
_IS_RECIPE = re.compile(r"^[ \t]*\w*modifiers:|^\s*-\s*!\w+Modifier", re.MULTILINE)


def recipes_in(folder: Path) -> list[tuple[Path, str | Path]]:
    """Files of recipes, or the recipes that a document shows."""
    if folder.suffix == ".md":
        blocks = [textwrap.dedent(block) + "\n" for block in _SHOWN.findall(folder.read_text(encoding="utf-8"))]
        return [(folder, block) for block in blocks if _IS_RECIPE.search(block)]
    found: list[tuple[Path, str | Path]] = []
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".yaml", ".yml", ".md"):
            continue
        if _SETTINGS.search(path.as_posix()) and "recipes" not in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        if _IS_RECIPE.search(text) and (path.suffix != ".md" or _CARD.match(text)):
            found.append((path, path))
    return found


def main() -> int:
    root, folder, expected = Path(sys.argv[1]), sys.argv[2], [int(number) for number in sys.argv[3:]]
    read = refused = 0
    wrong: list[str] = []
    for path, source in recipes_in(root / folder):
        name = str(path.relative_to(root))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                manager = ScheduledModifierManager.from_yaml(source, recipe_variables=VARIABLES.get(path.name))
                again = ScheduledModifierManager.from_yaml(str(manager))
            if str(again) != str(manager):
                wrong.append(f"{name}: written and read, it is another recipe")
            read += 1
        except ValueError as error:
            if "compresses a language model after its training" in str(error):
                refused += 1
            elif not any(name.endswith(file) and why in str(error) for file, why in BROKEN.items()):
                wrong.append(f"{name}: {error}")
    print(f"{folder}: {read} read, {refused} refused")
    print("\n".join(wrong))
    return 1 if wrong or [read, refused][: len(expected)] != expected else 0


if __name__ == "__main__":
    sys.exit(main())
