"""torchrun whose exit code is that of the process that ended first: ``python -m trainwright.launch.processes ...``.

torchrun itself ends with 1 whatever its processes ended with, and a scheduler would not know a preempted run (75) from
a broken one.
"""

from __future__ import annotations

import sys


def main(words: list[str]) -> int:
    """Run torchrun with ``words``; the code of the first process that failed, 128 + n where signal n ended it."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(words)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode or 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
