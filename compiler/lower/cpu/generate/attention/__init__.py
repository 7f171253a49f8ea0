"""Attention as one kernel (`description.py`): in float32 (`writer.py`), and with products of bfloat16 (`paired.py`)."""
