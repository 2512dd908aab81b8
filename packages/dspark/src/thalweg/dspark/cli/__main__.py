"""`python -m thalweg.dspark.cli` is the command `thalweg-dspark`."""

import sys

from thalweg.dspark.cli.program import main

sys.exit(main())
