"""Fixtures: small models and data that several tests use."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch and tokenizers are imported: two cores, and no network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A report takes a second, and there are thousands of trainings here: tests that look at one ask for it.
os.environ.setdefault("TRAINWRIGHT_REPORT", "0")

# Under nohup a hang-up is ignored, in the background of a shell Ctrl-C, also by every process that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.misaligned import misplace_what_is_read
from trainwright import TrainingArguments

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=1, help="how many seeds tests with a `seed` run under")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("seeds")))


@pytest.fixture(autouse=True)
def _one_thread_and_default_dtype() -> Iterator[None]:
    torch.set_num_threads(1)
    # A run takes its seed from here where none is given: the order of the tests must not decide it.
    torch.manual_seed(0)
    logger = logging.getLogger("trainwright")
    # A Trainer with a log_level sets it for the process, also in a fixture of a whole module; and a library that
    # configures logging may switch off the loggers that it finds.
    logger.setLevel(logging.NOTSET)
    logger.disabled = False
    yield
    logger.setLevel(logging.NOTSET)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True, scope="module")
def _what_is_imported_stays() -> None:
    # Hundreds of modules are: searching them for garbage again and again takes a second each time.
    gc.freeze()


@pytest.fixture(autouse=True)
def _what_is_read_lies_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    misplace_what_is_read(monkeypatch)


@pytest.fixture
def make_args(tmp_path: Path) -> Callable[..., TrainingArguments]:
    """Quiet arguments with an output directory of the test's own."""

    def make(**kwargs: Any) -> TrainingArguments:
        defaults: dict[str, Any] = {
            "output_dir": str(tmp_path / "run"),
            "disable_tqdm": True,
            "save_strategy": "no",
            "use_cpu": True,
        }
        return TrainingArguments(**{**defaults, **kwargs})

    return make
