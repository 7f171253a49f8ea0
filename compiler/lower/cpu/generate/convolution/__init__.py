"""Convolutions and pooling in plain NCHW."""
