"""What released versions saved can be resumed from, and ends where the uninterrupted run of that version ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.old_checkpoints.kinds import Ended
from tests.old_checkpoints.make import ALL, HOME, put_back, read, trained, trained_by_several
from trainwright.cli.app import app

KEPT = sorted(path.parent for path in HOME.glob("*/*/expected.json"))
#: Losses are logged in single precision.
LOGGED = 1e-6


def named(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


def of(processes: int) -> list[Path]:
    return [path for path in KEPT if ALL[path.name].processes == processes]


def furthest(one: Ended, other: Ended) -> float:
    """The largest difference between two weights."""
    assert one.weights.keys() == other.weights.keys()
    pairs = ((tensor.double(), other.weights[name].double()) for name, tensor in one.weights.items())
    return max(float((a - b).abs().max()) for a, b in pairs)


def assert_ends_as_recorded(kept: Path, end: Ended, tolerance: float | None = None) -> None:
    tolerance, expected = tolerance or ALL[kept.name].tolerance, read(kept)
    assert furthest(end, expected) <= tolerance
    assert end.logged.keys() == expected.logged.keys()
    for name, entries in expected.logged.items():
        assert [step for step, _ in end.logged[name]] == [step for step, _ in entries]
        found, wanted = ([value for _, value in found] for found in (end.logged[name], entries))
        assert found == pytest.approx(wanted, abs=max(tolerance, LOGGED)), name


def test_every_kind_was_kept() -> None:
    """Also those of the doors; a kind that a release had is there for that release."""
    first = {path.name for path in KEPT if path.parent.name == "0.1.0"}
    assert first == set(ALL)


@pytest.mark.parametrize("kept", of(1), ids=named)
@pytest.mark.filterwarnings("ignore")
def test_a_kept_checkpoint_ends_as_its_release_would_have(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back(kept, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert_ends_as_recorded(kept, trained(kept.name, resume=True))


@pytest.mark.parametrize("kept", [path for path in of(1) if path.parent.name == "0.1.0"], ids=named)
@pytest.mark.filterwarnings("ignore")
def test_an_uninterrupted_run_ends_as_it_did_then(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_ends_as_recorded(kept, trained(kept.name, resume=False), ALL[kept.name].from_beginning)


@pytest.mark.slow
@pytest.mark.parametrize("version", sorted({path.parent for path in KEPT}), ids=lambda path: path.name)
def test_two_processes_go_on_with_what_two_processes_kept(
    version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [path for path in of(2) if path.parent == version]
    for path in kept:
        put_back(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    ends = trained_by_several([path.name for path in kept], 2, resume=True)
    for path in kept:
        assert_ends_as_recorded(path, ends[path.name])


@pytest.mark.parametrize("kept", of(2), ids=named)
@pytest.mark.filterwarnings("ignore")
def test_one_process_goes_on_with_what_two_processes_kept(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back(kept, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert_ends_as_recorded(kept, trained(kept.name, resume=True))


@pytest.mark.parametrize("kept", [path for path in KEPT if path.name != "pymarlin"], ids=named)
def test_a_kept_checkpoint_verifies(kept: Path) -> None:
    done = CliRunner().invoke(app, ["verify", str(max(kept.rglob("manifest.json")).parent)])
    assert done.exit_code == 0, done.output
    assert ": good" in done.output


def test_what_is_kept_says_nothing_about_the_machine_that_made_it() -> None:
    for path in (path for kept in KEPT for path in kept.rglob("*")):
        assert path.name != "env.json"
        if path.suffix in (".json", ".jsonl", ".yaml"):
            text = path.read_text()
            assert "/tmp" not in text, path
            assert "/home" not in text, path


def test_the_recorded_weights_are_not_those_of_the_checkpoint() -> None:
    """So that a resume that does not train, or not from there, would show."""
    for kept in KEPT:
        stored = [load_file(path) for path in sorted(kept.rglob("*checkpoint-*/model.safetensors"))]
        if not stored or kept.name == "keep-best":
            continue
        end = {name.removeprefix("model."): tensor for name, tensor in read(kept).weights.items()}
        moved = [(end[name].double() - tensor.double()).abs().max() for name, tensor in stored[-1].items()]
        assert max(moved) > 5 * ALL[kept.name].tolerance, kept
