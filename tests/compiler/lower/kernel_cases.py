"""The cases of the kernel suite, for every device, by family."""

from __future__ import annotations

from collections.abc import Mapping

from tests.compiler.lower.kernel_case import Case
from tests.compiler.lower.kernel_contractions import convolutions, products
from tests.compiler.lower.kernel_elements import casts, elementwise, movement, scans
from tests.compiler.lower.kernel_reductions import pools, reductions

FAMILIES: Mapping[str, tuple[Case, ...]] = {
    made.__name__: tuple(made())
    for made in (convolutions, products, elementwise, casts, reductions, pools, movement, scans)
}
