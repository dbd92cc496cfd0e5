"""The ``trainwright`` command."""

from trainwright.cli import checkpoints as checkpoints  # registers its commands
from trainwright.cli import estimating as estimating  # registers its commands
from trainwright.cli import experiments as experiments  # registers its commands
from trainwright.cli import exports as exports  # registers its commands
from trainwright.cli import launching as launching  # registers its commands
from trainwright.cli import looking as looking  # registers its commands
from trainwright.cli import proving as proving  # registers its commands
from trainwright.cli import recipes as recipes  # registers its commands
from trainwright.cli import runs as runs  # registers its commands
from trainwright.cli import souping as souping  # registers its commands
from trainwright.cli import starting as starting  # registers its commands
from trainwright.cli import sweeping as sweeping  # registers its commands
from trainwright.cli import tailing as tailing  # registers its commands
from trainwright.cli import trying as trying  # registers its commands
from trainwright.cli import underneath as underneath  # registers its commands
from trainwright.cli.app import main

__all__ = ["main"]
