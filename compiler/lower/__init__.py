"""Lowering: one partition to one piece of code, per device."""
