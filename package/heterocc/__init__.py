"""heterocc: an ahead-of-time compiler for ONNX models, and the runtime of what it compiles."""
