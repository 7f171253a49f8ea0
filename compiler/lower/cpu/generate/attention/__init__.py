"""Attention as one kernel (`description.py`): in float32 (`writer.py`; `short.py`: over fewer keys than a
vector has lanes, of dynamic lengths), and with products of bfloat16 (`paired.py`)."""
