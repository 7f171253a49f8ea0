"""OpenVINO as a peer of benchmarks on the CPU."""

from __future__ import annotations

from heterocc.runtime.cli.peers import openvino_runner

__all__ = ["openvino_runner"]
