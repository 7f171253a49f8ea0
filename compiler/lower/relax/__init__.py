"""From the ONNX nodes of a partition to a Relax module of kernel calls."""
