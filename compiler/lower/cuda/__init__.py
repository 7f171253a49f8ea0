"""The CUDA back end, which compiles the code of TVM's stock generator ahead of time."""
