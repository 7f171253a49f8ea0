"""What was made of the last model that was tried as a whole, for the lowering that most likely follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.lower.backend import PartitionJob

Form = TypeVar("Form")


class Tried(Generic[Form]):
    """One form of a job, kept until a partition takes it."""

    def __init__(self) -> None:
        self._kept: tuple[PartitionJob, Form] | None = None

    def keep(self, job: PartitionJob, make: Callable[[PartitionJob], Form]) -> bool:
        """Make the form of a job and keep it in place of the one before; False if it cannot be made."""
        self._kept = None
        try:
            self._kept = (job, make(job))
        except Exception as error:  # as in `refusal`: trials of single nodes give the reasons
            pass_foreign(error)
            return False
        return True

    def take(self, job: PartitionJob) -> Form | None:
        """The form of this job if it is kept; that of another is dropped, because it holds a model.

        Forms that depend on the timing of kernels are made anew: trials do without.
        """
        kept, self._kept = self._kept, None
        if kept is None or kept[0].model is not job.model or job.tuning is not None:
            return None
        same = dataclasses.replace(kept[0], name=job.name) == job
        return kept[1] if same else None
