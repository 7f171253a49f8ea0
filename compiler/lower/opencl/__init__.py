"""The OpenCL back end, which uses TVM's stock code generator."""
