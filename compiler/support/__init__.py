"""Support of nodes by devices: the query, its trial lowering, and its cache."""
