"""LLVM code for the CPU."""
