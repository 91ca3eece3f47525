"""`python -m dgpp`, the same as `dgpp`."""

import sys

from dgpp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
