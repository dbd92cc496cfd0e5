"""Every report in a real browser: it shows what it should, asks the network for nothing, and says no error.

The pictures in the README and the documents are taken here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.browser.conftest import PICTURES, Opened
from tests.experiment import tiny
from tests.report.runs import HOSTILE, hostile_run, stored_run
from trainwright.experiment.library import descriptions

pytestmark = pytest.mark.browser
COMMAND = [sys.executable, "-m", "trainwright"]
#: Of each experiment that comes with trainwright: what makes it small.
SMALL: dict[str, list[str]] = {
    "characters": ["training.max_steps=20", "training.evaluate_every=10 steps"],
    "chat": ["training.max_steps=20"],
    "digits": ["training.num_train_epochs=2"],
    "image-folder": ["training.num_train_epochs=2"],
    "language-model": ["training.max_steps=8"],
    "own-module": ["training.max_steps=20"],
    "summaries": ["training.max_steps=8"],
    "table": ["training.max_steps=40"],
    "text-classification": ["training.max_steps=16"],
}


def call(*words: str, expect: int = 0, cwd: Path) -> str:
    environment = {**os.environ, "TRAINWRIGHT_REPORT": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [*COMMAND, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def data_for(place: Path, name: str) -> list[str]:
    """What an experiment needs that does not come with it, small; and what says where it is."""
    texts = {
        "text-classification": [{"text": f"the film was {kind}", "label": kind} for kind in ("good", "bad") * 24],
        "summaries": [{"article": "red one two", "summary": "red one"}] * 48,
        "language-model": [{"text": "the good film is a very good film"}] * 80,
    }
    if name in texts:
        (place / "notes.jsonl").write_text("\n".join(map(json.dumps, texts[name])))
        {"text-classification": tiny.bert, "summaries": tiny.bart, "language-model": tiny.gpt}[name](place / "model")
        return ["model.name=model", "data.train=notes.jsonl", "data.holdout=0.25", "data.max_length=16"]
    if name == "image-folder":
        from PIL import Image

        for kind, colour in (("cat", 20), ("dog", 230)):
            (place / f"photos/train/{kind}").mkdir(parents=True)
            for index in range(12):
                Image.new("RGB", (24, 20), (colour, index * 9, 99)).save(place / f"photos/train/{kind}/{index}.png")
        tiny.vit(place / "model")
        return ["model.name=model", "data.holdout=0.25"]
    return []


def test_every_packaged_experiment_is_tried() -> None:
    assert set(SMALL) == set(descriptions())


@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_report_of_a_packaged_experiment(name: str, tmp_path: Path, opened: Opened) -> None:
    call("cp", name, ".", cwd=tmp_path)
    file = f"{name}.yaml"
    given = data_for(tmp_path, name)
    written = yaml.safe_load((tmp_path / file).read_text())
    # The rows are no split of a data set.
    written.get("data", {}).pop("eval_split", None)
    (tmp_path / file).write_text(yaml.safe_dump(written))
    trust = ["--trust"] if name == "own-module" else []
    call("train", file, *SMALL[name], *given, "training.use_cpu=true", "training.report_to=none", *trust, cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    opened.look_at(folder / "report.html")
    assert opened.is_quiet()
    page = opened.page
    assert page.locator(".state").inner_text() == "finished"
    assert page.locator("h2").first.inner_text() == "Result"
    assert page.locator(".card").count() >= 3
    assert all_pictures_are_drawn(page)
    assert (folder / "report.html").stat().st_size < 1_000_000
    # Nothing is wider than the page, on a telephone either.
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def all_pictures_are_drawn(page: Any) -> bool:
    count = page.locator("img").count()
    return count > 0 and page.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")


def test_the_demo_shows_dense_and_pruned_side_by_side(tmp_path: Path, opened: Opened) -> None:
    printed = call("demo", cwd=tmp_path)
    last = printed.strip().splitlines()[-1]
    assert last.split()[:2] == ["report", "runs/demo-digits/report.html"]
    opened.look_at(tmp_path / "runs/demo-digits/report.html")
    assert opened.is_quiet()
    page = opened.page
    table = page.locator("section", has_text="Side by side").locator("table").first
    assert table.locator("th").all_inner_texts() == ["", "dense", "pruned"]
    assert all_pictures_are_drawn(page)
    page.screenshot(path=PICTURES / "report.png", clip={"x": 0, "y": 0, "width": 1000, "height": 1500}, full_page=True)
    # The curves have tabs, which need no script.
    curve = page.locator(".tabs").first
    before = curve.locator("img:visible").get_attribute("src")
    curve.locator("label", has_text="time").click()
    assert curve.locator("img:visible").get_attribute("src") != before
    opened.look_at(tmp_path / "runs/demo-digits/pruned/report.html")
    assert opened.is_quiet()
    assert page.locator("h2", has_text="Recipe").count() == 1
    predictions = page.locator("section", has=page.locator("h2", has_text="Predictions"))
    predictions.screenshot(path=PICTURES / "predictions.png")


def test_the_report_of_a_run_that_failed_was_stopped_diverged_or_went_on(tmp_path: Path, opened: Opened) -> None:
    code = (
        "import os, signal, sys, torch; from pathlib import Path; from tests.faults import runner\n"
        "def fail(): raise RuntimeError('the disk of <b>host</b> is gone')\n"
        "def stop(): os.kill(os.getpid(), signal.SIGTERM)\n"
        "class Breaks(runner.TrainerCallback):\n"
        "    def on_step_end(self, args, state, control, model=None, **_):\n"
        "        state.global_step == 5 and torch.nn.init.constant_(model.layers[0].weight, float('nan'))\n"
        "how = {'failed': [runner.At(fail)], 'stopped': [runner.At(stop)], 'nan': [Breaks()], 'resumed': None}\n"
        "extra = {'logging_nan_inf_filter': False} if sys.argv[2] == 'nan' else {}\n"
        "runner.build(Path(sys.argv[1]), how[sys.argv[2]], write_report=True, **extra).train()\n"
    )
    expected = {"failed": "failed", "stopped": "stopped", "nan": "finished", "resumed": "finished"}
    for how, state in expected.items():
        folder = tmp_path / ("stopped" if how == "resumed" else how)
        (folder / "report.md").unlink(missing_ok=True)
        subprocess.run([sys.executable, "-c", code, str(folder), how], check=False, capture_output=True, timeout=120)
        until = time.monotonic() + 60
        while not (folder / "report.md").is_file() and time.monotonic() < until:
            time.sleep(0.1)
        opened.look_at(folder / "report.html")
        assert opened.is_quiet()
        assert opened.page.locator(".state").inner_text() == state
        words = opened.page.locator("body").inner_text()
        said = {
            "failed": "RuntimeError at step 5: the disk of <b>host</b> is gone",
            "stopped": f"stopped by {signal.SIGTERM.name} at step 5",
            "nan": "The loss is not a number from step 6 on",
            "resumed": "started again",
        }
        assert said[how] in words


@pytest.mark.parametrize("options", [[], ["--interactive"]])
def test_hostile_names_do_nothing(options: list[str], tmp_path: Path, opened: Opened) -> None:
    folder = hostile_run(tmp_path / "<img src=x onerror=alert(1)>")
    call("report", str(folder), *options, cwd=tmp_path)
    opened.look_at(folder / "report.html")
    opened.page.wait_for_timeout(300)
    assert opened.is_quiet()
    assert opened.page.locator("h1").inner_text() == folder.name
    assert opened.page.locator("iframe, object, embed, form, a").count() == 0
    assert HOSTILE[0] in opened.page.locator("body").inner_text()


def test_an_interactive_report_draws_and_zooms(tmp_path: Path, opened: Opened) -> None:
    folder = stored_run(tmp_path / "run", steps=200)
    call("report", str(folder), "--interactive", cwd=tmp_path)
    opened.look_at(folder / "report.html")
    assert opened.page.locator(".live .main-svg").count() >= 4
    box = opened.page.locator(".live").first.bounding_box()
    assert box is not None
    ticks = opened.page.locator(".live").first.locator(".xtick").all_inner_texts()
    mouse = opened.page.mouse
    mouse.move(box["x"] + 200, box["y"] + 150)
    mouse.down()
    mouse.move(box["x"] + 400, box["y"] + 150, steps=5)
    mouse.up()
    opened.page.wait_for_timeout(300)
    assert opened.page.locator(".live").first.locator(".xtick").all_inner_texts() != ticks
    assert opened.is_quiet()


def test_a_comparison_in_a_browser(tmp_path: Path, opened: Opened) -> None:
    stored_run(tmp_path / "a")
    hostile_run(tmp_path / "b")
    call("compare", "a", "b", "--html", "both.html", cwd=tmp_path)
    opened.look_at(tmp_path / "both.html")
    assert opened.is_quiet()
    assert all_pictures_are_drawn(opened.page)


def test_the_report_of_a_sweep(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "sizes.yaml").write_text(
        """
model: {name: mlp}
data: {train: digits, limit_train: 400}
training: {num_train_epochs: 4}
search:
  trials: 12
  space:
    training.learning_rate: {log_range: [1e-4, 1e-1]}
    training.optim: [sgd, adamw_torch]
    model.options.width: {range: [8, 64], step: 8}
"""
    )
    said = call("sweep", "sizes.yaml", cwd=tmp_path)
    folder = tmp_path / "runs" / "sizes-sweep"
    assert f"{Path('runs/sizes-sweep/report.html')}" in said
    opened.look_at(folder / "report.html")
    assert opened.is_quiet()
    shown = opened.page.locator("body").inner_text()
    best = json.loads((folder / "sweep.json").read_text())["best"][0]
    assert f"trial {best}" in shown
    assert "model.options.width" in shown
    assert opened.page.locator("img").count() >= 4
    opened.page.screenshot(path=str(PICTURES / "sweep.png"), full_page=True)


def test_hostile_words_in_a_sweep_do_nothing(tmp_path: Path, opened: Opened) -> None:
    word = HOSTILE[0]
    trial = {"state": word, "values": {word: 0.5}, "settings": {word: word}, "reason": word, "folder": word}
    trials = [{"number": number, **trial, "course": [[1, 0.1], [2, word], [3, 0.3 + number]]} for number in range(3)]
    trials += [{"number": 3, "state": "done", "values": {word: 0.7}, "settings": {word: [word]}, "course": word}]
    trials += [{"number": word, "state": "done", "values": word, "settings": 3, "measured": word, "parent": word}]
    found = {"form": 1, "name": word, "state": word, "goals": [{"metric": word, "direction": word}], "best": [3, word]}
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "sweep.json").write_text(json.dumps({**found, "trials": trials, "importance": {word: 0.5, "b": word}}))
    call("report", str(folder), cwd=tmp_path)
    opened.look_at(folder / "report.html")
    opened.page.wait_for_timeout(300)
    assert opened.is_quiet()
    assert opened.page.locator("iframe, object, embed, form, a").count() == 0
    assert word in opened.page.locator("body").inner_text()
    assert call("report", str(folder), "--interactive", cwd=tmp_path, expect=2) == ""
