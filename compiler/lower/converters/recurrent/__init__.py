"""Converters of LSTM, GRU and RNN, and the kernel of a layer."""

from heterocc.compiler.lower.converters.recurrent import operators, quantised

__all__ = ["operators", "quantised"]
