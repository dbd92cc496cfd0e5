"""``python -m trainwright``."""

import os
import sys

# Python looks into the current folder first, which may be anybody's; an installed trainwright needs nothing there.
if sys.path[:1] == [os.getcwd()] and not os.path.samefile(os.path.dirname(os.path.dirname(__file__)), os.getcwd()):
    del sys.path[0]

from trainwright.cli import main

if __name__ == "__main__":
    main()
