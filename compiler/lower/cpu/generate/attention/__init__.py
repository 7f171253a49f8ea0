"""Attention as one kernel: what it is (`description.py`), and how it is written (`writer.py`)."""
