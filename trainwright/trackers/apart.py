"""A package in a process of its own: questions and answers, one JSON object a line.

For packages that read at import where to write, and keep that for the whole process. What they print, and the threads
and exit hooks that they begin, are that process's then, and it has no terminal on which to ask for anything.
"""

from __future__ import annotations

import atexit
import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.config.secrets import redacted

logger = logging.getLogger("trainwright")


class Apart:
    """A script that answers what it is asked; ``name`` is for messages.

    A question is ``{"do": ..., ...}``. An answer has ``answer``, or ``error`` with ``is_mistake`` where the user must
    correct something, and ``warnings``, which go to the log, each once.
    """

    def __init__(self, name: str, script: Path, variables: Mapping[str, str]) -> None:
        self.name = name
        self._said: set[str] = set()
        # -P: nothing of the folder that the script lies in, or of the current one, is imported. In a session of its
        # own no Ctrl-C reaches it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(variables),
            encoding="utf-8",
            start_new_session=True,
        )
        # One that hangs would outlive us: it hears no signal, and nobody else knows it.
        atexit.register(self._process.kill)

    def ask(self, verb: str, **values: object) -> Any:
        """The answer; ``ValueError`` where the user must correct something, ``ConnectionError`` for all else."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = json.dumps({"do": verb, **values}, default=str) + "\n"
        try:
            self._process.stdin.write(question)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (OSError, ValueError) as error:
            raise self._gone() from error
        if not line:
            raise self._gone()
        reply = json.loads(line)
        for warning in reply["warnings"]:
            if warning not in self._said:
                self._said.add(warning)
                logger.warning("%s: %s", self.name, redacted(warning))
        if "error" in reply:
            raise (ValueError if reply["is_mistake"] else ConnectionError)(reply["error"])
        return reply["answer"]

    def _gone(self) -> ConnectionError:
        self.stop()
        return ConnectionError(f"the process of {self.name} has ended, with {self._process.returncode}")

    @property
    def is_running(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def stop(self) -> None:
        """It ends by itself when nobody can ask it any more; one that does not is made to."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    # What was still to be written has nobody to read it.
                    continue
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        atexit.unregister(self._process.kill)
