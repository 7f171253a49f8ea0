"""Converters of ONNX operators to Relax, where TVM's importer lacks them or gets them wrong."""
