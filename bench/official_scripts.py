"""transformers' own example scripts, unmodified, on its loop and under `trainwright run`.

python bench/official_scripts.py --scripts path/to/transformers/examples/pytorch

Models are tiny and without dropout, data and metrics are made up, and nothing is fetched. nltk and albumentations are
stand-ins (albumentations' leaves images as they are); so is torchvision where it is not installed. Losses are compared
at every step, unrounded, as `trainer_state.json` of each run has them; metrics of the evaluation after it likewise, and
the files of predictions.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import official_material  # type: ignore[missing-import]  # beside this file
import official_vision  # type: ignore[missing-import]

#: Options of every run, before those of the case.
ALL = (
    "--do_train --do_eval --use_cpu --max_steps 10 --logging_steps 1 --learning_rate 1e-3 --save_strategy no"
    " --per_device_train_batch_size 4 --per_device_eval_batch_size 4 --report_to none --disable_tqdm true"
)
#: A mean over other pieces is the same number to some seven digits.
ROUNDING = 1e-6
#: These depend on the clock, or say what was asked for.
NOT_COMPARED = ("runtime", "per_second", "_samples", "epoch", "flos", "preparation_time")


@dataclass(frozen=True)
class Mend:
    """What is replaced in the copy that is run, for both, and how the table says it."""

    old: str
    new: str
    said: str


@dataclass(frozen=True)
class Case:
    """One script with one model: ``options`` are the script's own, with {data} for the folder of data."""

    script: str
    model: str
    options: str
    note: str = ""
    #: Packages that the script imports, and that not everybody has.
    needs: tuple[str, ...] = ()
    #: What the script, or a metric that it uses, takes from torchvision.
    vision: str = ""
    mends: tuple[Mend, ...] = ()

    @property
    def name(self) -> str:
        return f"{Path(self.script).name}, {self.model}"


def files(kind: str, ending: str = "json") -> str:
    return f"--train_file {{data}}/{kind}-train.{ending} --validation_file {{data}}/{kind}-validation.{ending}"


TESTED = " --do_predict --test_file {data}/%s-validation.json"
GENERATED = " --predict_with_generate"
IMAGES = "--train_dir {data}/images/train --validation_dir {data}/images/validation --remove_unused_columns false"
PRETRAIN = "--dataset_name {data}/images --remove_unused_columns false --label_names "
UNDERCOUNT = "transformers counts a block's first token as a target, which GPT-2's loss does not predict"
BY_TARGET = "`eval_loss`: mean over targets here, over batches there"
PLACE = "drawn at random, here from another place in the generator's sequence"
DRAWN = f"masks are {PLACE}"
CROPPED = f"crops are {PLACE}"
BOTH = f"crops and masks are {PLACE}"
#: run_plm.py misspells an argument, run_fim.py takes the mean of a module: neither runs anywhere as it is.
SPELLED = Mend("processing_classtokenizer=", "processing_class=", "`processing_class` spelled right")
WEIGHT = Mend(
    "original_embeddings = model.get_input_embeddings()\n",
    "original_embeddings = model.get_input_embeddings().weight\n",
    "the embedding's `.weight`, without which it fails anywhere",
)
#: The folder named xnli is that of the data.
NAMED = Mend('evaluate.load("xnli"', 'evaluate.load("accuracy"', "the metric under another name")
SEEDED = Mend(
    "data_collator=data_collator,",
    "data_collator=lambda rows: (set_seed(0), data_collator(rows))[1],",
    "the collator seeded at each batch",
)
NOISE = Mend(
    'return {"pixel_values": pixel_values}',
    'return {"pixel_values": pixel_values, "noise": torch.arange(16.0).expand(len(examples), -1)}',
    "the same patches masked each time",
)
UNFLIPPED = Mend("RandomHorizontalFlip(),", "", "no flips")


def uncropped(arguments: str) -> Mend:
    """Images have the right size as they are."""
    return Mend(f"RandomResizedCrop({arguments}),", "", "no crops")


TEXT = files("text", "txt")
CASES = [
    Case("language-modeling/run_clm.py", "gpt2", TEXT + " --block_size 32", UNDERCOUNT),
    Case("language-modeling/run_clm.py", "llama", TEXT + " --block_size 32"),
    Case("language-modeling/run_fim.py", "llama", TEXT + " --block_size 32", mends=(WEIGHT,)),
    Case("language-modeling/run_mlm.py", "bert", TEXT + " --max_seq_length 32", DRAWN),
    Case(
        "language-modeling/run_mlm.py", "bert, without draws", TEXT + " --max_seq_length 32", BY_TARGET,
        mends=(SEEDED,),
    ),
    Case("language-modeling/run_plm.py", "xlnet", TEXT + " --max_seq_length 32", DRAWN, mends=(SPELLED,)),
    Case(
        "language-modeling/run_plm.py", "xlnet, without draws", TEXT + " --max_seq_length 32", BY_TARGET,
        mends=(SPELLED, SEEDED),
    ),
    Case("text-classification/run_glue.py", "bert", files("pairs") + " --max_seq_length 64" + TESTED % "pairs"),
    Case(
        "text-classification/run_classification.py", "bert",
        files("single") + " --shuffle_train_dataset --text_column_names sentence" + TESTED % "single",
    ),
    Case(
        "text-classification/run_classification.py", "bert, a number",
        files("numbers") + " --do_regression true" + TESTED % "numbers",
    ),
    Case("text-classification/run_xnli.py", "bert", "--language en --max_seq_length 64", mends=(NAMED,)),
    Case("token-classification/run_ner.py", "bert", files("tags") + TESTED % "tags", BY_TARGET),
    Case("multiple-choice/run_swag.py", "bert", files("swag")),
    Case(
        "question-answering/run_qa.py", "bert",
        files("squad") + " --max_seq_length 64 --doc_stride 16" + TESTED % "squad",
    ),
    Case(
        "question-answering/run_qa_beam_search.py", "xlnet",
        files("squad") + " --max_seq_length 64 --doc_stride 16" + TESTED % "squad",
    ),
    Case(
        "question-answering/run_seq2seq_qa.py", "t5",
        files("squad") + " --context_column context --question_column question --answer_column answers"
        " --max_seq_length 64 --max_answer_length 8" + GENERATED, BY_TARGET,
    ),
    Case(
        "summarization/run_summarization.py", "t5",
        files("summaries") + " --max_target_length 12" + TESTED % "summaries" + GENERATED, BY_TARGET,
    ),
    Case(
        "translation/run_translation.py", "t5",
        files("translation") + " --source_lang en --target_lang fr --max_target_length 12"
        + TESTED % "translation" + GENERATED, BY_TARGET,
    ),
    Case("image-classification/run_image_classification.py", "vit", IMAGES, CROPPED, vision="transforms"),
    Case(
        "image-classification/run_image_classification.py", "vit, without draws", IMAGES, vision="transforms",
        mends=(uncropped("size"), UNFLIPPED),
    ),
    Case(
        "image-pretraining/run_mae.py", "vitmae", PRETRAIN + "pixel_values", BOTH,
        vision="transforms",
    ),
    Case(
        "image-pretraining/run_mae.py", "vitmae, without draws", PRETRAIN + "pixel_values", vision="transforms",
        mends=(uncropped("size, scale=(0.2, 1.0), interpolation=InterpolationMode.BICUBIC"), UNFLIPPED, NOISE),
    ),
    Case(
        "image-pretraining/run_mim.py", "vitmim", PRETRAIN + "bool_masked_pos --mask_patch_size 8",
        BOTH, vision="transforms",
    ),
    Case(
        "image-pretraining/run_mim.py", "vitmim, without draws", PRETRAIN + "bool_masked_pos --mask_ratio 1",
        vision="transforms",
        mends=(uncropped("model_args.image_size, scale=(0.67, 1.0), ratio=(3.0 / 4.0, 4.0 / 3.0)"), UNFLIPPED),
    ),
    Case(
        "object-detection/run_object_detection.py", "yolos",
        "--dataset_name {data}/boxes --image_square_size 32 --remove_unused_columns false"
        " --eval_do_concat_batches false --ignore_mismatched_sizes true", needs=("pycocotools",), vision="boxes",
    ),
    Case(
        "contrastive-image-text/run_clip.py", "clip",
        files("captions") + " --image_column image_path --caption_column caption --max_seq_length 16"
        " --remove_unused_columns false", vision="transforms",
    ),
    Case(
        "semantic-segmentation/run_semantic_segmentation.py", "segformer",
        f"--dataset_name {official_vision.STREETS} --remove_unused_columns false",
    ),
    Case(
        "instance-segmentation/run_instance_segmentation.py", "maskformer",
        "--dataset_name {data}/things --image_height 32 --image_width 32 --learning_rate 1e-5",
        needs=("pycocotools",), vision="boxes",
    ),
]  # fmt: skip
#: Scripts with a Trainer that are left out, and why.
LEFT_OUT = {
    "run_audio_classification.py, run_speech_recognition_*.py": "need torchcodec and FFmpeg",
}


@dataclass(frozen=True)
class Outcome:
    losses: dict[int, float]
    train_loss: float
    metrics: dict[str, float]
    #: Files of predictions: name -> text.
    predictions: dict[str, str]


def run(case: Case, scripts: Path, folder: Path, ours: bool) -> Outcome | str:
    """What the script's run wrote, or the last line of its complaint."""
    output = folder / "runs" / case.name / ("ours" if ours else "theirs")
    words = [*(["-m", "trainwright", "run"] if ours else []), str(copied(case, scripts, folder))]
    words += ["--model_name_or_path", str(folder / "models" / case.model.partition(",")[0])]
    words += ["--output_dir", str(output), *ALL.split(), *case.options.format(data=folder / "data").split()]
    paths = [str(folder / "stand_ins"), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    if stands_in(case):
        paths.insert(0, str(folder / "stand_in_torchvision"))
    # A cache for each: run_fim.py draws while it maps, and would draw nothing where the first run's result is found.
    environment = {"PYTHONPATH": os.pathsep.join(paths), "HF_HOME": str(output / "cache"), "HF_HUB_OFFLINE": "1"}
    environment["HF_HUB_CACHE"] = str(folder / "hub")
    ended = subprocess.run(
        [sys.executable, *words], cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    output.mkdir(parents=True, exist_ok=True)
    (output / "log").write_text(ended.stdout + ended.stderr)
    if ended.returncode:
        return ended.stderr.strip().rpartition("\n")[2][:200]
    return outcome(output)


def stands_in(case: Case) -> bool:
    """Whether the case gets bench/official_torchvision.py, because torchvision is not installed."""
    return bool(case.vision) and importlib.util.find_spec("torchvision") is None


def copied(case: Case, scripts: Path, folder: Path) -> Path:
    """The script in the temporary folder, among the files that it imports, with the case's mends."""
    place = folder / "scripts" / case.name
    shutil.copytree((scripts / case.script).parent, place, dirs_exist_ok=True)
    script = place / Path(case.script).name
    text = script.read_text()
    for mend in case.mends:
        assert mend.old in text, f"{case.script} has changed: it has no {mend.old!r}"
        text = text.replace(mend.old, mend.new)
    script.write_text(text)
    return script


def outcome(output: Path) -> Outcome:
    log = json.loads((output / "trainer_state.json").read_text())["log_history"]
    results = json.loads((output / "all_results.json").read_text())
    metrics = {
        key: value
        for key, value in results.items()
        if key.startswith(("eval_", "predict_", "test_")) and not key.endswith(NOT_COMPARED)
    }
    files = {
        file.name: file.read_text() for pattern in ("*predict*.txt", "*predict*.json") for file in output.glob(pattern)
    }
    files.pop("predict_results.json", None)
    return Outcome({row["step"]: row["loss"] for row in log if "loss" in row}, results["train_loss"], metrics, files)


def difference(a: float, b: float) -> float:
    """0 for two NaNs; infinite where one is missing."""
    return 0.0 if math.isnan(a) and math.isnan(b) else abs(a - b)


def row(case: Case, theirs: Outcome | str, ours: Outcome | str) -> str:
    """One line of the table."""
    if isinstance(theirs, str) or isinstance(ours, str):
        failed = [f"{who}: {what}" for who, what in (("transformers", theirs), ("here", ours)) if isinstance(what, str)]
        return f"| {case.name} | {shown(theirs)} | {shown(ours)} | | | fails on {'; '.join(failed)} |"
    assert theirs.losses.keys() == ours.losses.keys(), f"{case.name} took other steps"
    largest = max(difference(theirs.losses[step], ours.losses[step]) for step in ours.losses)
    unequal = unequal_metrics(theirs, ours)
    said = [f"`{key}` {a:.6g}, here {b:.6g}" for key, (a, b) in unequal.items()]
    written = sorted(theirs.predictions.keys() | ours.predictions.keys())
    said += [name for name in written if ours.predictions.get(name) != theirs.predictions.get(name)]
    equal = "; ".join(said) or f"yes ({len(ours.metrics)}{', predictions' if written else ''})"
    notes = [case.note] if case.note and (largest > 0 or said) else []
    if stands_in(case):
        notes.append(f"with a stand-in for torchvision's {case.vision}")
    if case.mends:
        notes.append("a copy with " + ", ".join(mend.said for mend in case.mends))
    return f"| {case.name} | {shown(theirs)} | {shown(ours)} | {largest:.1e} | {equal} | {'; '.join(notes)} |"


def unequal_metrics(theirs: Outcome, ours: Outcome) -> dict[str, tuple[float, float]]:
    """Metrics that differ by more than a different order of additions explains."""
    found = {}
    for key in sorted(theirs.metrics.keys() | ours.metrics.keys()):
        a, b = theirs.metrics.get(key, math.inf), ours.metrics.get(key, math.inf)
        if not difference(a, b) <= ROUNDING * abs(a):
            found[key] = (a, b)
    return found


def shown(result: Outcome | str) -> str:
    return "" if isinstance(result, str) else f"{result.train_loss:.6f}"


def versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "accelerate", "datasets"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", type=Path, required=True, help="examples/pytorch of a checkout of transformers")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--keep", type=Path, help="a new folder for everything, instead of a temporary one")
    given = parser.parse_args()
    print(versions() + "\n")
    print(
        "| script, model | transformers' train_loss | here | largest difference of a step | eval metrics equal | note |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.keep or Path(temporary)).resolve()
        folder.mkdir(exist_ok=True)
        official_material.make(folder)
        for case in (case for case in CASES if given.only in case.name):
            missing = [name for name in case.needs if importlib.util.find_spec(name) is None]
            if missing:
                print(f"| {case.name} | | | | | not run: needs {', '.join(missing)} |", flush=True)
                continue
            results: list[Any] = [run(case, given.scripts.resolve(), folder, ours) for ours in (False, True)]
            print(row(case, *results), flush=True)
    for name, reason in LEFT_OUT.items():
        print(f"\n{name}: not run, {reason}.")


if __name__ == "__main__":
    main()
