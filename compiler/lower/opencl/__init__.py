"""OpenCL code through the stock code generator."""
