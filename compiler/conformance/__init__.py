"""heterocc as a backend in ONNX's sense. `scripts/conformance` runs ONNX's node tests, and reports them."""
