"""Programs that measure, each with its usage in its docstring; most compare with ONNX Runtime in the same run.

`networks/` has whole models on a device, language models among them, `operators/` single layers and operators,
`compiler/` compiles and placement, `runtime/` loads, runs and transfers, `service/` the service, and `fit/` the numbers
that models of time need. They share `peers/` (other programs), `dynamic_sizes/` and `transfers/`. `figures/` has
the tables of docs/performance.md; programs write benchmarks/results.
"""
