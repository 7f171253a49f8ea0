import sys
from pathlib import Path

# tests/models.py and the harness are plain modules beside the tests.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
