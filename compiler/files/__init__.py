"""Files that commands read and write, and temporary ones, also as memory (`memory.py`); programs that a compile starts
(`programs.py`), and modules that are found by their place (`modules.py`)."""
