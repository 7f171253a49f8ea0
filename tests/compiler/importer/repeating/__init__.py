"""Tests of heterocc.compiler.importer.repeating."""
