"""The best placement by an objective: by minimum cuts, messages, branch and bound, and descent."""
