"""The report as a file: what is in it, and that nothing anybody wrote into a run does anything in it."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.report.runs import HOSTILE, hostile_run, stored_run, write_lines
from trainwright.cli.app import app
from trainwright.config.errors import ConfigError
from trainwright.report.blocks import Cards, Code, Folded, Gallery, Page, Picture, Section, Table, Text
from trainwright.report.html_page import html_of
from trainwright.report.markdown_page import markdown_of
from trainwright.report.page import sections_for_card, write_report
from trainwright.report.tables import add_table

#: Whatever else stood in a page would have come from a file.
TAGS = {
    *("html", "head", "meta", "link", "title", "style", "body", "header", "h1", "h2", "span", "p", "section", "div"),
    *("b", "img", "pre", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "figure", "figcaption"),
    *("input", "label", "footer"),
}


class Elements(HTMLParser):
    """Counts elements, and keeps their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = Counter[str]()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs


def elements_of(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    return found


def is_harmless(text: str) -> bool:
    found = elements_of(text)
    names = {name for name, _ in found.attributes}
    places = [value or "" for name, value in found.attributes if name in ("src", "href")]
    return (
        set(found.tags) <= TAGS
        and not any(name.startswith("on") for name in names)
        and all(place.startswith("data:") for place in places)
    )


def test_the_result_comes_first_and_everything_is_in_one_file(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "night-run")
    add_table(folder, "Against last year", ("", "now", "then"), [("accuracy", 0.95, 0.91)])
    written = write_report(folder)
    page = written.html.read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles[:2] == ["Result", "Side by side"]
    assert {"Curves", "Where the time went", "Settings"} <= set(titles)
    assert "night-run" in page
    assert 'class="state finished"' in page
    assert "0.95" in page
    assert "best, at step 20" in page
    # Steps, time and tokens.
    assert re.findall(r"<label[^>]*>(\w+)</label>", page)[:3] == ["step", "time", "tokens"]
    assert len(page) < 1_000_000
    assert is_harmless(page)
    text = written.markdown.read_text()
    assert text.startswith("# night-run\n\nfinished at step 20 of 20")
    assert "| eval_accuracy | 0.95 | best, at step 20 |" in text


def test_what_was_asked_for_while_training_is_in_the_report(tmp_path: Path) -> None:
    """Histograms, the loss of each class, a profile; and what accelerations bring, which nobody has to ask for."""
    folder = stored_run(tmp_path / "run")
    spread = {"low": 0.0, "high": 4.0, "counts": [1, 1, 1, 1]}
    moments = [
        {"step": step, "gradients": {"head.weight": spread}, "weights": {"head.weight": spread}} for step in (1, 9)
    ]
    write_lines(folder / "histograms.jsonl", moments)
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(
            json.dumps({"step": step, "loss/cats": 1 / step, "loss/dogs": 2 / step}) + "\n" for step in (1, 9)
        )
    cost = {"seconds": 0.412, "bytes": 61_000_000_000}
    event = {"kind": "acceleration", "message": "Faster than plain.", "gain": {"plain": None, "accelerated": cost}}
    write_lines(folder / "events.jsonl", [event])
    (folder / "profile").mkdir()
    summary = "# Profile of steps 5 to 6\n\n2 steps took 3 ms each.\n\n| what | ms |\n|---|--:|\n| a\\|b&lt;c | 1.5 |\n"
    (folder / "profile" / "summary.md").write_text(summary)
    written = write_report(folder)
    page, text = written.html.read_text(), written.markdown.read_text()
    assert page.count('alt="gradients of head.weight: median from 2 to 2"') == 1
    assert page.count('alt="weights of head.weight: median from 2 to 2"') == 1
    assert "loss of each group: loss/cats from 1 to 0.1111; loss/dogs from 2 to 0.2222" in page
    assert "| in the plain way | does not fit into memory |  |" in text
    assert "| accelerated | 412 ms | 61.0 GB |" in text
    assert "<p>2 steps took 3 ms each.</p>" in page
    assert "<td>a|b&lt;c</td><td>1.5</td>" in page


@pytest.mark.parametrize(("state", "sentence"), [("failed", "ValueError at step 20: no"), ("stopped", "by SIGTERM")])
def test_a_report_says_how_a_run_ended(tmp_path: Path, state: str, sentence: str) -> None:
    page = write_report(stored_run(tmp_path / "run", state=state)).html.read_text()
    assert f'class="state {state}"' in page
    assert sentence in page


def test_a_model_card_has_the_facts_but_neither_samples_nor_folders(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run")
    sample = {"index": 3, "input": "a private letter", "label": "yes", "prediction": "no", "loss": 3.0}
    found = {"kind": "classification", "names": ["no", "yes"], "confusion": [[3, 1], [0, 4]], "worst": [sample]}
    (folder / "evaluation.json").write_text(json.dumps({"eval": found}))
    command = ["-m", "train", "--data", f"{tmp_path}/letters.csv", "--from", "https://example.org/a/b"]
    (folder / "env.json").write_text(json.dumps({"command": command}))
    assert "a private letter" in write_report(folder).html.read_text()
    card = sections_for_card(folder)
    assert "7 of 8 predictions are right" in card
    assert "a private letter" not in card
    assert str(tmp_path) not in card
    assert "python -m train --data letters.csv --from https://example.org/a/b" in card


def test_hostile_words_stay_words(tmp_path: Path) -> None:
    folder = hostile_run(tmp_path / "<b>run")
    written = write_report(folder)
    page = written.html.read_text(encoding="utf-8")
    assert is_harmless(page)
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page
    text = written.markdown.read_text(encoding="utf-8")
    text = re.sub(r"^(```+)\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    # Outside of code no picture, no heading and no HTML of theirs.
    assert not re.search(r"(?<!\\)!\[", text)
    assert "\n# heading" not in text
    assert not re.search(r"(?<!\\)<(script|img|iframe)", text)
    assert "\x1b" not in text


words = st.text(max_size=30) | st.sampled_from(HOSTILE)


@given(
    st.lists(
        st.one_of(
            st.builds(Text, words),
            st.builds(Code, words),
            st.builds(lambda head, row: Table(head, [row]), st.lists(words, max_size=3), st.lists(words, max_size=3)),
            st.builds(lambda one: Cards([one]), st.tuples(words, words, words)),
            st.builds(lambda one: Gallery([one]), st.tuples(words, words)),
            st.builds(lambda alt, one: Picture(alt, [one, one]), words, st.tuples(words, words)),
            st.builds(lambda title, text: Folded(title, [Text(text)]), words, words),
        ),
        max_size=5,
    ),
    words,
)
def test_no_word_becomes_an_element(blocks: list[Any], title: str) -> None:
    page = Page(title, (title, title), [Section(title, blocks)])
    text = html_of(page, title)
    assert is_harmless(text)
    text.encode("utf-8")
    plain = Page("x", ("x", "x"), [Section("x", [])])
    assert elements_of(html_of(plain)).tags["h2"] == elements_of(html_of(page)).tags["h2"]
    markdown_of(page).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    "nonsense", [b"", b"\xff\xfe\x00", b"[" * 50_000, b'{"step": 1e400, "loss": "x"}\n', b"null\n"]
)
def test_files_of_nonsense_make_a_report_all_the_same(tmp_path: Path, nonsense: bytes) -> None:
    folder = stored_run(tmp_path / "run")
    names = (
        "metrics.jsonl performance.jsonl events.jsonl samples.jsonl evaluation.json layers.json tables.json env.json"
    )
    for name in names.split():
        (folder / name).write_bytes(nonsense)
    assert is_harmless(write_report(folder).html.read_text())


def test_numbers_that_are_none_leave_a_gap_and_a_word(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run")
    lines = [{"step": step, "loss": float("nan") if step > 3 else 1.0 / step} for step in range(1, 9)]
    write_lines(folder / "metrics.jsonl", lines)
    page = write_report(folder).html.read_text()
    assert "The loss is not a number from step 4 on" in page


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not the folder of a run: it has no config.yaml"):
        write_report(tmp_path)
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_link_in_place_of_the_report_is_replaced_and_not_followed(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run")
    (tmp_path / "precious").write_text("mine")
    (folder / "report.html").symlink_to(tmp_path / "precious")
    write_report(folder)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (folder / "report.html").is_symlink()


def test_runs_in_its_folder_stand_beside_a_run(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "dense")
    stored_run(folder / "pruned", steps=10)
    stored_run(folder / "checkpoint-5")
    text = write_report(folder).markdown.read_text()
    assert re.search(r"\| pruned \| finished \| 10 \|", text)
    assert "checkpoint-5" not in text


def test_an_interactive_report_has_plotly_in_it(tmp_path: Path) -> None:
    folder = hostile_run(tmp_path / "run")
    page = write_report(folder, interactive=True).html.read_text()
    assert "Plotly.newPlot" in page
    # Its own script and ours; no name has ended one.
    assert page.count("</script>") == 2
    drawn = json.loads(re.search(r"Object\.entries\((\{.*\})\)\) Plotly", page)[1])  # type: ignore[index]
    assert not any("<" in trace["name"] for figure in drawn.values() for trace in figure["data"])
    assert "http-equiv" in page
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="http', page)


def test_a_table_needs_as_many_values_as_its_head(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs 2 values"):
        add_table(tmp_path, "t", ("a", "b"), [(1,)])
