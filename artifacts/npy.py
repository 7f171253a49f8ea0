"""Reading of untrusted `.npy` bytes: no pickle, no evaluation, no allocation by a size in the header."""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING

import numpy as np

from heterocc.artifacts.errors import BundleError

if TYPE_CHECKING:
    import numpy.typing as npt

_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = (
    r"\{'descr': '([<|](?:b1|[iu][1248]|f[248]|c8|c16|[SU][1-9][0-9]{0,6}|V[1248]))', "
    r"'fortran_order': (False|True), 'shape': \(((?:[0-9]{1,15}, ?)*[0-9]{0,15})\), \} *\n"
)


def parse_npy(data: memoryview, name: str) -> npt.NDArray[np.generic]:
    """The array in `data` without a copy. Raises BundleError, naming member `name`, if it is malformed.

    Format version 1.0 (numpy's NEP 1) with a header as numpy writes it; little endian, no structured and no object
    dtypes, strings of at most 9,999,999 characters.
    """
    if data.nbytes < 10 or data[:8] != _MAGIC:
        raise BundleError(f"member '{name}' is not an .npy file")
    (length,) = struct.unpack_from("<H", data, 8)
    header = re.fullmatch(_HEADER, str(data[10 : 10 + length], "latin-1"))
    if header is None:
        raise BundleError(f"the header of member '{name}' is malformed")
    dtype = np.dtype(header[1])
    shape = tuple(int(d) for d in header[3].split(",") if d.strip())
    body = data[10 + length :]
    if len(shape) > 32 or math.prod(max(d, 1) for d in shape) * max(dtype.itemsize, 1) > 2**62:
        raise BundleError(f"the shape of member '{name}' is too large")
    if math.prod(shape) * dtype.itemsize != body.nbytes:
        raise BundleError(f"the shape of member '{name}' does not fit its size")
    if not body.nbytes:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, buffer=body, order="F" if header[2] == "True" else "C")
