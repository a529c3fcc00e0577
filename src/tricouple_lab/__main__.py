"""``python -m tricouple_lab`` is the command."""

import sys

from tricouple_lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
