"""Run the command line with `python -m thalweg.engine.cli`."""

import sys

from thalweg.engine.cli.program import main

sys.exit(main())
