"""Tools for regression tests of compilers: comparison of bundles, reduction of models, golden files for pytest."""
