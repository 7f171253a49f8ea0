"""What a command on a model is asked to do, checked before any work is done."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from heterocc.artifacts.files.writing import require_writable
from heterocc.artifacts.weights.weight_file import Draft
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.build.ahead import LoweringAhead
from heterocc.compiler.checking.ahead import VectorsAhead
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.options import CompileOptions
from heterocc.compiler.placement.affinity_file import affinity_from
from heterocc.compiler.placement.run_passes import Trace, pipeline_of
from heterocc.compiler.support.query import QueryResult
from heterocc.passes.affinity import Affinity
from heterocc.passes.base import Pass
from heterocc.passes.explain.other import OtherReport, read_other


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A command on a model, with all that its steps share.

    `target` is the file that the command writes, `draft` the one for the bundle of the first check. `measures` allows
    the policy `measured`, `calibrated` the use of times that `heterocc calibrate` stored. `vectors` and `lowering` work
    ahead in threads. `seconds` is wall time by stage.

    Raises the errors of places for outputs, of the affinity file, of the other report, and of the names of policies and
    passes.
    """

    source: ModelSource
    options: CompileOptions
    reporter: Reporter
    target: Path | None = None
    measures: bool = False
    calibrated: bool = True
    vectors: VectorsAhead | None = None
    lowering: LoweringAhead | None = None
    draft: Draft | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what can be checked before any work is done."""
        self.require_places()
        _ = self.affinity, self.other, self.pipeline, Trace(self.options.dump_dir, self.options.pass_limit)

    @cached_property
    def affinity(self) -> Affinity:
        """The user's decisions; in a query's result, which has a device for every node, the entries that were set."""
        given = self.options.affinity
        return affinity_from(given.pins() if isinstance(given, QueryResult) else given)

    @cached_property
    def other(self) -> OtherReport | None:
        """The report that the new one shows beside it."""
        return read_other(self.options.compare, self.options.report)

    @cached_property
    def pipeline(self) -> tuple[str, tuple[Pass, ...]]:
        """The name of the policy, or the text of `--passes`, and its passes."""
        return pipeline_of(self.options, measures=self.measures)

    @property
    def policy(self) -> str:
        """The name of the policy, or the text of `--passes`."""
        return self.pipeline[0]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes that place the model."""
        return self.pipeline[1]

    def require_places(self) -> None:
        """Raise OutputFileError (HC111) for outputs that cannot be written or are inputs."""
        for path in (self.target, self.options.report):
            if path is not None:
                require_writable(path)
        for folder in (self.options.dump_dir, self.options.dot_dir):
            if folder is not None:
                require_writable(folder, folder=True)


def files_of(source: ModelSource, options: CompileOptions) -> dict[str | os.PathLike[str], str]:
    """The files that a command on a model reads, with their roles; the import adds the model's external data."""
    files: dict[str | os.PathLike[str], str] = dict.fromkeys(
        (path for path in options.device_files if isinstance(path, Path)), "a device file"
    )
    if options.config is not None:
        files[options.config] = "the configuration file"
    if isinstance(options.affinity, Path):
        files[options.affinity] = "the affinity file"
    if options.inputs is not None:
        files[options.inputs] = "the file of inputs"
    if options.compare is not None:
        files[options.compare] = "the other report"
    return files if source.data is not None else {**files, source.path: "the model"}
