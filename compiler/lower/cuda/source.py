"""CUDA C++ source: functions of halves that TVM's code generator calls and CUDA does not have."""

from __future__ import annotations

import re

_PREFIX = "heterocc_"
_FUNCTIONS = {
    "hnearbyint": "hrint(x)",
    "hsinh": "__float2half_rn(sinhf(__half2float(x)))",
    "hcosh": "__float2half_rn(coshf(__half2float(x)))",
}
_CALL = re.compile(rf"\b({'|'.join(_FUNCTIONS)})\(")


def complete(code: str) -> str:
    """The source with those functions defined, under names of our own: CUDA may have them one day."""
    used = sorted({call[1] for call in _CALL.finditer(code)})
    if not used:
        return code
    lines = [f"#define {_PREFIX}{name}(x) {_FUNCTIONS[name]}" for name in used]
    return "\n".join([*lines, _CALL.sub(rf"{_PREFIX}\1(", code)])
