import sys
from pathlib import Path

# small.py is a plain module beside the tests.
sys.path.insert(0, str(Path(__file__).parent))
