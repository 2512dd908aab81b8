"""Makes the helpers importable and hands out record files."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
