"""`python -m conca` is the command `conca`."""

import sys

from conca.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
