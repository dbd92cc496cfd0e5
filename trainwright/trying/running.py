"""Start the processes of a try, and end them: no process and no folder is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.trying.plan import LOG, OBSERVED, Plan
from trainwright.trying.safety import environment


@dataclass
class Ran:
    """A process that has ended, and what it observed."""

    plan: Plan
    code: int
    timed_out: bool
    observed: dict[str, Any] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        return self.observed.get("outcome") == "trained"

    @property
    def was_killed(self) -> bool:
        return self.observed.get("outcome") == "killed" and self.code == -signal.SIGKILL

    @property
    def log(self) -> Path:
        return Path(self.plan.folder) / LOG

    @property
    def losses(self) -> dict[int, float]:
        return {int(step): loss for step, loss in self.observed.get("losses", {}).items()}

    @property
    def gradient_norms(self) -> dict[int, float]:
        return {int(step): norm for step, norm in self.observed.get("gradient_norms", {}).items()}


class Processes:
    """Starts runs one after the other; whatever still runs when it is closed is killed.

    Args:
        folder: Where the server's log goes.
        timeout: Seconds that a run may take.
        fork: Whether runs are forked from a process that has imported everything (see ``server.py``).
    """

    def __init__(self, folder: Path, timeout: float, *, fork: bool) -> None:
        self._folder, self._timeout, self._fork = folder, timeout, fork
        self._server: subprocess.Popen[bytes] | None = None
        self._run: int | None = None

    def run(self, plan: Plan) -> Ran:
        """Run a plan to its end; one that takes too long is killed with everything it started."""
        path = plan.write()
        code = self._run_forked(path) if self._fork else self._run_new(path, plan)
        # The script's words may hold a token, and the folder may be kept.
        path.unlink(missing_ok=True)
        return Ran(plan, -signal.SIGKILL if code is None else code, code is None, _read(Path(plan.folder) / OBSERVED))

    def _run_new(self, path: Path, plan: Plan) -> int | None:
        with (Path(plan.folder) / LOG).open("wb") as log:
            process = _start("child", str(path), output=log, log=log, folder=plan.folder)
            self._run = process.pid
            try:
                return process.wait(self._timeout)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self._end_run()
                process.wait()

    def _run_forked(self, path: Path) -> int | None:
        if self._server is None:
            with (self._folder / "server.log").open("wb") as log:
                self._server = _start("server", output=subprocess.PIPE, log=log, folder=str(self._folder))
        assert self._server.stdin is not None
        try:
            self._server.stdin.write(f"{path}\n".encode())
            self._server.stdin.flush()
            self._run = self._answer(self._server)
            if self._run is None:
                # It is still importing: its answers would be taken for those of the next run.
                self.close()
                self._server = None
                return None
            code = self._answer(self._server)
            if code is None:
                self._end_run()
                self._answer(self._server)
            return code
        except (BrokenPipeError, EOFError):
            # It could not even import what it needs; its log says why.
            shutil.copyfile(self._folder / "server.log", path.parent / LOG)
            return 1
        finally:
            self._end_run()

    def _answer(self, server: subprocess.Popen[bytes]) -> int | None:
        """The next number that the server says; None where it takes too long."""
        assert server.stdout is not None
        ready, _, _ = select.select([server.stdout], [], [], self._timeout)
        if not ready:
            return None
        line = server.stdout.readline()
        if not line:
            raise EOFError
        return int(line)

    def _end_run(self) -> None:
        """Kill a run and what it started: its group outlives it where workers of a loader do."""
        if self._run is not None:
            _kill(self._run)

    def close(self) -> None:
        self._end_run()
        if self._server is None:
            return
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # It takes leave of the run that was killed, or is still importing.
            self._server.wait(0 if self._run is None else 2)
        _kill(self._server.pid)
        self._server.wait()
        self._server.stdout.close()


def _start(module: str, *words: str, output: Any, log: Any, folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: without the current folder among the modules. The script's own folder is, as Python would have it.
        [sys.executable, "-P", "-m", f"trainwright.trying.{module}", *words],
        stdin=subprocess.DEVNULL if output is log else subprocess.PIPE,
        stdout=output,
        stderr=log,
        env=environment(folder),
        start_new_session=True,
        bufsize=0,
    )


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


@contextmanager
def workplace(*, keep: bool) -> Iterator[Path]:
    """A temporary folder for everything that the runs write."""
    folder = Path(tempfile.mkdtemp(prefix="trainwright-try-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def last_lines(ran: Ran, count: int = 12) -> list[str]:
    """The end of what a run said, or of its traceback."""
    text = ran.observed.get("traceback") or _tail(ran.log)
    lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-count:]


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-20_000:].decode("utf-8", "replace")
    except OSError:
        return ""
