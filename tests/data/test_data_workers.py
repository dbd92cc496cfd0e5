"""Workers: deaf to the signals of schedulers, never left behind, and nobody waits for them without a way out."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from trainwright.data import workers
from trainwright.data.batches import FixedBatches
from trainwright.data.collators import collate_any
from trainwright.data.feed import TrainFeed
from trainwright.data.loader import Loader
from trainwright.data.order import SequentialOrder

pytestmark = pytest.mark.slow


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": index, "pid": os.getpid()}


class Hanging(Rows):
    """Never comes back from its last sample, and does not listen."""

    def __init__(self, at: int = 199) -> None:
        self.at = at

    def __getitem__(self, index: int) -> dict[str, Any]:
        while index == self.at:
            time.sleep(60)
        return super().__getitem__(index)


def loader_over(data: Any, **options: Any) -> Loader:
    return Loader(data, batch_size=4, collate_fn=collate_any, num_workers=2, **options)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_ignore_the_signals_of_schedulers(persistent: bool) -> None:
    loader = loader_over(Rows(), persistent_workers=persistent)
    rows, pids = [], set()
    for batch in loader:
        rows += batch["x"].tolist()
        pids |= set(batch["pid"].tolist())
        for pid in pids:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                os.kill(pid, number)
    assert rows == list(range(200))
    assert len(pids) == 2
    loader.close()
    assert not any(map(is_alive, pids))


def test_signals_to_the_whole_group_leave_only_the_main_process_to_decide(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal, sys
        from tests.data.test_data_workers import Rows, loader_over

        asked = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: asked.append(number))
        loader = loader_over(Rows())
        batches = iter(loader)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            os.killpg(os.getpgrp(), number)  # at once: workers are hardly born
        rows = [row for batch in batches for row in batch["x"].tolist()]
        assert rows == list(range(200)), rows
        assert set(asked) == {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr


def test_programs_started_by_a_dataset_can_be_terminated() -> None:
    class Decoding(Rows):
        def __getitem__(self, index: int) -> Any:
            program = subprocess.Popen(["sleep", "60"])
            program.terminate()
            return program.wait(timeout=20)

    loader = loader_over(Decoding())
    assert next(iter(loader)).tolist() == [-signal.SIGTERM] * 4
    loader.close()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("stop", [1, 50])
def test_close_leaves_no_worker_behind(persistent: bool, stop: int) -> None:
    loader = loader_over(Rows(), persistent_workers=persistent)
    batches = iter(loader)
    for _ in range(stop):
        next(batches)
    assert len(multiprocessing.active_children()) == 2
    loader.close()
    assert multiprocessing.active_children() == []
    loader.close()
    assert len(list(loader)) == 50
    loader.close()
    assert multiprocessing.active_children() == []


def test_close_kills_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_GRACE_SECONDS", 0.3)
    loader = loader_over(Hanging(at=9))
    batches = iter(loader)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    loader.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("ending", ["", "del loader"])
def test_an_interpreter_exits_though_a_worker_hangs(tmp_path: Path, ending: str) -> None:
    script = tmp_path / "hang.py"
    script.write_text(
        "from tests.data.test_data_workers import Hanging, loader_over\n"
        "loader = loader_over(Hanging(at=9), persistent_workers=True)\n"
        f"batches = iter(loader)\nprint(next(batches)['pid'][0].item())\n{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert not is_alive(int(done.stdout))


def _train_in_a_child() -> None:
    next(iter(loader_over(Hanging(at=9))))
    batches = iter(loader_over(Hanging(at=9)))
    next(batches)
    globals()["kept"] = batches


def test_a_child_process_exits_though_its_worker_hangs() -> None:
    child = multiprocessing.get_context("fork").Process(target=_train_in_a_child)
    child.start()
    child.join(60)
    assert child.exitcode == 0


class GivingUp(Exception):
    pass


@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"timeout": 100}])
def test_poll_can_end_a_wait(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_GRACE_SECONDS", 0.3)
    calls = []

    def poll() -> None:
        calls.append(time.monotonic())
        if len(calls) == 2:
            raise GivingUp

    loader = Loader(
        Hanging(at=9),
        batch_sampler=FixedBatches(SequentialOrder(200), 4),
        collate_fn=collate_any,
        num_workers=2,
        **options,
    )
    feed = TrainFeed(loader, 1, len(loader), poll=poll)
    groups = feed.groups()
    next(groups), next(groups)
    with pytest.raises(GivingUp):
        next(groups)
    assert feed.position()["batches"] == 2
    loader.close()
    assert multiprocessing.active_children() == []


def test_a_wait_that_ends_well_is_only_polled() -> None:
    class Slow(Rows):
        def __getitem__(self, index: int) -> dict[str, Any]:
            time.sleep(1.2 if index == 0 else 0)
            return super().__getitem__(index)

    calls: list[int] = []
    loader = loader_over(Slow(), poll=lambda: calls.append(1))
    assert len(list(loader)) == 50
    assert len(calls) >= 2


def test_a_worker_that_dies_is_still_noticed() -> None:
    class Dying(Rows):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    loader = loader_over(Dying())
    with pytest.raises(
        RuntimeError, match="was killed by SIGKILL, as the kernel does when the machine runs short of memory"
    ):
        list(loader)
    loader.close()
    assert multiprocessing.active_children() == []


def test_streams_in_workers_are_closed_too() -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            while True:
                yield torch.zeros(1)

    loader = loader_over(Endless(), persistent_workers=True)
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        next(iter(loader))
    loader.close()
    assert multiprocessing.active_children() == []
