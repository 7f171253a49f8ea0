"""Which device can run which node: the query, the trial lowering behind it, and its cache."""
