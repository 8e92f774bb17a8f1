"""Test doubles of this folder can be imported by name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
