"""`python -m thalweg.eplb.cli` is the command `thalweg-eplb`."""

import sys

from thalweg.eplb.cli.program import main

sys.exit(main())
