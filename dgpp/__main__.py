"""`python -m dgpp`, the same as `dgpp`."""

import sys

from dgpp.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
