"""DDP, FSDP2 and tensor parallelism with real processes on gloo, against one process with the same batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from trainwright.checkpoint.directory import list_checkpoints, newest_good

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("spreading.py")
#: What one launch does, one task after another.
TASKS = ("agree", "fsdp", "options", "recipes", "out_of_memory", "tensors")

Answers = dict[str, Any]

#: One worker, so that what the tests look at is run once.
pytestmark = pytest.mark.xdist_group("strategies")


def launch(tasks: str, folder: Path, processes: int, **environment: str) -> subprocess.CompletedProcess[str]:
    script = [str(SCRIPT), tasks, str(folder)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [sys.executable, *(torchrun if processes > 1 else []), *script],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        check=False,
    )


def answers(tasks: str, folder: Path, processes: int, **environment: str) -> dict[str, list[Answers]]:
    """What each process found, by task."""
    done = launch(tasks, folder, processes, **environment)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-5000:]
    return {
        task: [json.loads((folder / f"{task}-{processes}-{rank}.json").read_text()) for rank in range(processes)]
        for task in tasks.split(",")
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spread")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Answers]:
    tasks = ",".join(task for task in TASKS if task != "fsdp")
    return {task: found[0] for task, found in answers(tasks, folder, 1).items()}


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, list[Answers]]:
    return answers(",".join(TASKS), folder, 2)


def numbers(value: Any) -> Iterator[float]:
    """All numbers in nested containers, in an order of their names."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from numbers(value[key])
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    else:
        yield float(value)


def distance(one: Any, other: Any) -> float:
    first, second = list(numbers(one)), list(numbers(other))
    assert len(first) == len(second)
    return max((abs(a - b) for a, b in zip(first, second, strict=True)), default=0.0)


def assert_same_run(alone: Answers, other: Answers) -> None:
    """float64 throughout; losses are logged in single precision."""
    assert distance(other["weights"], alone["weights"]) < 1e-10
    assert distance(other["predictions"], alone["predictions"]) < 1e-10
    assert distance(other["logs"], alone["logs"]) < 1e-6
    assert other["steps"] == alone["steps"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["agree", "fsdp"])
def test_the_update_does_not_depend_on_the_number_of_processes(
    alone: dict[str, Answers], two: dict[str, list[Answers]], way: str
) -> None:
    """Labels of -100, whole rows without a target, uneven last batches, a layer that is never used, Modules."""
    for case, expected in alone["agree"].items():
        for process in two[way]:
            assert_same_run(expected, process[case])
            assert process[case]["weights"] == two[way][0][case]["weights"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_options_of_fsdp(alone: dict[str, Answers], two: dict[str, list[Answers]], folder: Path) -> None:
    from transformers import LlamaForCausalLM

    found, expected = two["options"][0], alone["options"]
    for name in ("tied", "offload", "size", "hybrid", "first", "ddp"):
        assert distance(found[name]["weights"], expected["plain"]["weights"]) < 1e-5, name
    assert distance(found["untied"]["weights"], expected["untied"]["weights"]) < 1e-5
    # Weights that no process had are drawn alike, however many processes there are.
    assert distance(found["empty"]["weights"], expected["empty"]["weights"]) < 1e-5
    assert 0 < distance(found["bf16"]["weights"], expected["plain"]["weights"]) < 0.1
    checkpoint = folder / "options" / "tied" / "checkpoint-2"
    exported = folder / "one-file"
    command = [sys.executable, "-m", "trainwright", "export", str(checkpoint), "--to", "safetensors"]
    subprocess.run([*command, "--output", str(exported)], check=True, capture_output=True, timeout=100)
    one_file = {name: tensor.double().tolist() for name, tensor in load_file(exported / "model.safetensors").items()}
    assert distance(one_file, {name: found["tied"]["weights"][name] for name in one_file}) < 1e-12
    for place in (checkpoint, folder / "options" / "tied" / "model"):
        assert (place / "model-00002-of-00002.safetensors").is_file()
        loaded: Any = LlamaForCausalLM.from_pretrained(place, output_loading_info=True)
        read, info = loaded
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        stored = {name: tensor.double().tolist() for name, tensor in read.state_dict().items()}
        assert distance(stored, found["tied"]["weights"]) < 1e-12


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_recipes_on_weights_in_parts(alone: dict[str, Answers], two: dict[str, list[Answers]], folder: Path) -> None:
    """Pruning by magnitude, distillation and averages of weights; resumed, to the last bit."""
    found, expected = two["recipes"][0], alone["recipes"]["whole"]
    assert distance(found["whole"], expected) < 1e-10
    assert found["resumed"] == found["whole"]
    zeros = sum(
        value == 0
        for name, row in found["whole"]["weights"].items()
        if "inner.weight" in name
        for value in numbers(row)
    )
    assert zeros == 3 * 74
    masks = load_file(folder / "recipes" / "together" / "model" / "recipe_state.safetensors")
    assert masks


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_does_not_fit_is_cut(alone: dict[str, Answers], two: dict[str, list[Answers]]) -> None:
    expected = alone["out_of_memory"]["sp"]["weights"]
    assert distance(alone["out_of_memory"]["fsdp"]["weights"], expected) < 1e-10
    for process in two["out_of_memory"]:
        assert distance(process["ddp"]["weights"], expected) < 1e-10
        assert distance(process["fsdp"]["weights"], expected) < 1e-10
    # With copies only one process had to cut finer; with parts all look before the first step, and alike.
    assert [process["ddp"]["piece"] for process in two["out_of_memory"]] == [4, 1]
    assert [process["fsdp"]["piece"] for process in two["out_of_memory"]] == [2, 2]


def assert_tensor_parallel(alone: Answers, processes: list[Answers]) -> None:
    for process in processes:
        for case in ("plain", "resumed", "apart"):
            assert distance(process[case]["weights"], alone["plain"]["weights"]) < 1e-10
            assert distance(process[case]["predictions"], alone["plain"]["predictions"]) < 1e-10
            assert distance(process[case]["logs"], alone["plain"]["logs"]) < 1e-6
        assert process["resumed"]["weights"] == process["plain"]["weights"]
        assert distance(process["llama"]["weights"], alone["llama"]["weights"]) < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_layers_cut_over_two_processes(alone: dict[str, Answers], two: dict[str, list[Answers]]) -> None:
    assert_tensor_parallel(alone["tensors"], two["tensors"])


@pytest.mark.full
@pytest.mark.timeout(600)
def test_four_processes(alone: dict[str, Answers], tmp_path: Path) -> None:
    """Two that cut layers, times two that shard; and both other strategies."""
    found = answers("agree,fsdp,tensors", tmp_path, 4)
    for way in ("agree", "fsdp"):
        for case, expected in alone["agree"].items():
            assert_same_run(expected, found[way][0][case])
    assert_tensor_parallel(alone["tensors"], found["tensors"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_checkpoint_in_parts_goes_on_anywhere(tmp_path: Path) -> None:
    """Saved by two processes with FSDP; gone on with by one, and by two, each with a copy or with parts."""
    begun = answers("saving,begin", tmp_path, 2)
    saved = begun["saving"][0]
    assert saved["resumed"] == saved["whole"]
    expected = begun["begin"][0]["whole"]
    for processes in (1, 2):
        for found in answers("going_on", tmp_path, processes)["going_on"]:
            for way, other in found.items():
                assert distance(other["weights"], expected["weights"]) < 1e-10, (processes, way)
                assert other["steps"] == expected["steps"]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_checkpoint_of_one_process_goes_on_in_four(tmp_path: Path) -> None:
    expected = answers("begin", tmp_path, 1)["begin"][0]["whole"]
    for found in answers("going_on", tmp_path, 4)["going_on"]:
        for other in found.values():
            assert distance(other["weights"], expected["weights"]) < 1e-10


def kill_and_go_on(folder: Path, point: str) -> Answers:
    """Kill one process at ``point``; what is there then is whole, and the run goes on from it to its end."""
    name = point.replace(":", "-")
    done = launch("killed", folder, 2, KILLED_AT=point, KILLED_IN=name)
    assert done.returncode != 0
    assert not (folder / "killed-2-0.json").exists()
    found = list_checkpoints(folder / name)
    good = newest_good(folder / name)
    assert (good is None) == (not found)
    assert good is None or good == found[-1]
    whole = answers("killed", folder, 2, KILLED_IN=name)["killed"][0]
    (folder / "killed-2-0.json").unlink()
    assert not [path.name for path in (folder / name).iterdir() if path.name.startswith(".checkpoint")]
    return whole


#: (process, call, its number): while the second checkpoint is written, and when it gets its name.
POINTS = ("1:fsync:3", "0:rename:2")


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers("killed", tmp_path_factory.mktemp("unharmed"), 2, KILLED_IN="run")["killed"][0]


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_while_all_write(unharmed: Answers, tmp_path: Path, point: str) -> None:
    assert kill_and_go_on(tmp_path, point) == unharmed


@pytest.mark.full
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("process", [0, 1])
def test_a_process_killed_at_any_call(unharmed: Answers, tmp_path: Path, process: int) -> None:
    """Each forced write of the first two checkpoints, and each renaming."""
    points = [f"{process}:fsync:{number}" for number in range(1, 30 if process == 0 else 5, 2)]
    points += [f"0:rename:{number}" for number in range(1, 4)] if process == 0 else []
    for point in points:
        assert kill_and_go_on(tmp_path, point) == unharmed, point
