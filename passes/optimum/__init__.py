"""The best placement by an objective: by minimum cuts, integer programmes, and descent between the two."""
