"""Converters of LSTM, GRU and RNN, and the kernel of a layer."""

from heterocc.compiler.lower.converters.recurrent import operators

__all__ = ["operators"]
