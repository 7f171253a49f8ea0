"""Code, memory and copies on devices, and the chain that runs them.

`chain.py` runs the steps of `runtime/plan/`. `arranging.py` brings weights into the layouts that code reads, at load.

There are two ways to run a context. Native code goes from plain arrays to new results in one call (`runtime/native/`),
if a run is calls of CPU code or one ONNX Runtime session. Everything else goes through the chain, which converts
inputs, waits for devices and says what is wrong: its calls are bound to memory of the context, or to the caller's
arrays where code can use them (`direct.py`), and code for dynamic sizes returns new tensors (`dynamic/`). Both call the
same code of a partition, without TVM's virtual machine where it can be translated (`executable.py`).

`lending.py` maps and unmaps memory that a device lends. `cuda_streams.py` gives each context streams for copies, while
kernels share one stream per device, because TVM's memory pool assumes a single order.

Code is copied to sealed memory files before it is hashed, and weights are hashed in their mapping: the bytes that are
hashed are the bytes that run.
"""
