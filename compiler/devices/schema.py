"""`python -m heterocc.compiler.devices.schema` prints the JSON schema of a device file."""

from __future__ import annotations

import json

from heterocc.compiler.devices.file import device_file_schema

if __name__ == "__main__":
    print(json.dumps(device_file_schema(), indent=2))
