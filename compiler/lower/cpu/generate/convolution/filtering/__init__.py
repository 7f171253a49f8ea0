"""Minimal filtering: convolutions that multiply transformed inputs and weights."""
