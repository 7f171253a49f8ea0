"""Code, memory and copies on devices, and the chain that runs them.

`chain.py` runs the steps of `runtime/plan/`. `arranging.py` brings weights into the layouts that code reads, at load.
`lending.py` maps and unmaps memory that a device lends. `cuda_streams.py` gives each context streams for copies, while
kernels share one stream per device, because TVM's memory pool assumes a single order.

Code is copied to sealed memory files before it is hashed, and weights are hashed in their mapping: the bytes that are
hashed are the bytes that run.
"""
