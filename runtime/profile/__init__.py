"""Times of a run, and the values inside it."""
