"""Commands on top of a compile: explain a placement, calibrate costs, and the bundle of a model in the cache."""
