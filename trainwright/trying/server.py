"""Import torch and transformers once, and fork a process for each run: seconds saved for every one of them.

``python -m trainwright.trying.server`` reads the path of a plan from each line of its input. It answers with the number
of the process that it started, and with its exit code when it has ended. Only where there is no GPU: one that was
looked at before a fork cannot be used after it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trainwright.trying.plan import LOG, OURS, THEIRS, Plan
from trainwright.trying.safety import environment, upload_nothing


def main() -> None:
    """Serve until the input ends."""
    # Libraries may print while they are imported: not into the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    upload_nothing()
    from trainwright.trying import child, observe, recorder  # noqa: F401  (what takes long)

    for library in (THEIRS, OURS):
        observe.classes(library)
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        process = os.fork()
        if process == 0:
            _become(Plan.read(path))
            child.main(path)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        os.write(answers, f"{process}\n".encode())
        _, status = os.waitpid(process, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(plan: Plan) -> None:
    """What starting a new process would have done."""
    os.setsid()
    log = os.open(Path(plan.folder) / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  (it stays open)
    os.environ.clear()
    os.environ.update(environment(plan.folder))


if __name__ == "__main__":
    main()
