"""Layers of networks and of other models: products, windows, attention, recurrence, trees."""
