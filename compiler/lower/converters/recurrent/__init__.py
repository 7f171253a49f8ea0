"""Converters of LSTM, GRU and RNN, and the kernel of a layer."""
