"""Settings of tests whose examples are costly."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import Phase, settings


def few(count: int, **others: Any) -> settings:
    """So many examples in a search, drawn anew; else half of them, the same ones each time.

    None is made smaller when it fails, except in a search: `scripts/search.py` sets HETEROCC_SEARCH and gives the seed.
    `others` are further settings.
    """
    if "HETEROCC_SEARCH" in os.environ:
        return settings(max_examples=count, **others)
    phases = [Phase.explicit, Phase.generate]
    return settings(max_examples=-(-count // 2), derandomize=True, database=None, phases=phases, **others)
