"""Generate docs/errors.md from the docstrings of the error classes.

`python -m scripts.errors_page` prints the page; with a path it writes the page there.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from heterocc.artifacts import errors
from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.serve import errors as service_errors

_SECTIONS = (
    (errors.InputError, "HC1xx: the input", "The model, another input file, an option or an output path is at fault."),
    (errors.UnsupportedOpError, "HC2xx: operators", "No device can run a part of the model, or computes it correctly."),
    (errors.BundleError, "HC3xx: bundles", "A bundle is damaged, or has another version or target machine."),
    (errors.DeviceError, "HC4xx: devices", "A device is unknown, missing, or failed."),
    (service_errors.ServiceError, "HC5xx: the service", "`heterocc serve` cannot start, or cannot answer a request."),
    (errors.HeteroccError, "HC9xx: bugs in heterocc", "Please report these, with the file that the hint names."),
)

_HEAD = """\
# Errors

Generated from `artifacts/errors.py` and `runtime/serve/errors.py` by
`python -m scripts.errors_page docs/errors.md`; do not edit.

Errors that users can meet. Each is printed with its code, one sentence, the place in the input, and a hint:

    error[HC201]: no device can run Loop_19
      --> m.onnx: node 'decoder/Loop_3' (Loop)
      hint: add CPU to --devices, or see `heterocc query m.onnx`

With `--json` an error is printed as `{"code", "message", "where", "hint"}`. Exit codes: 0 success, 1 the input is at
fault, 2 wrong usage. A Python traceback is a bug in heterocc.
"""


def error_classes() -> tuple[type[HeteroccError], ...]:
    """All subclasses of HeteroccError, sorted by code."""
    found = {
        item
        for module in (errors, service_errors)
        for item in vars(module).values()
        if inspect.isclass(item) and issubclass(item, HeteroccError) and item is not HeteroccError
    }
    return tuple(sorted(found, key=lambda item: item.code))


def section_of(error: type[HeteroccError]) -> type[HeteroccError]:
    """The base class whose section lists an error."""
    return next(base for base, _, _ in _SECTIONS if issubclass(error, base))


def errors_page() -> str:
    """The text of docs/errors.md."""
    parts = [_HEAD]
    classes = error_classes()
    for base, title, about in _SECTIONS:
        parts.append(f"\n## {title}\n\n{about}\n\n| code | class | what happened | exit |\n|---|---|---|---|\n")
        for error in classes:
            if section_of(error) is base:
                text = " ".join((error.__doc__ or "").split())
                parts.append(f"| {error.code} | `{error.__name__}` | {text} | {error.exit_code} |\n")
    return "".join(parts)


def main(arguments: list[str]) -> None:
    """Print the page, or write it to the given path."""
    if arguments:
        Path(arguments[0]).write_text(errors_page(), encoding="utf-8")
    else:
        print(errors_page(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
