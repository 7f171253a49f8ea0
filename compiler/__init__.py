"""The compiler: from an ONNX model to a bundle.

    from heterocc.compiler import compile_model, query_model

    plan = query_model("model.onnx", "GPU,CPU")          # node → device, to look at and to change
    plan["conv1"] = "CPU"
    compile_model("model.onnx", "model.hcb", devices="GPU,CPU", affinity=plan)

These are the public names; `help()` describes the arguments of each. Everything else may change in any release.

Functions. A model is a path, an `onnx.ModelProto`, or the bytes of one; `base_dir` names the folder of the external
data of a model without a file.

    compile_model     compile a model into a bundle; returns a CompileReport
    partition_model   place a model's nodes only; returns a CompileReport
    explain_model     place a model's nodes and explain the plan; returns an Explanation
    explain_bundle    explain the placement of a bundle's variant; returns an Explanation
    calibrate_model   time a model's nodes on each device, for later placements
    query_model       query which device can run which node; returns a QueryResult
    import_model      normalise a model; returns an ImportedModel, which query_model also accepts
    sign_bundle       add a signature to a bundle; returns a SignReport
    create_key_pair   create the files of a private and a public key; returns the key and the public file
    read_signing_key  read a private key, which sign_bundle and `sign` of CompileOptions accept
    diff_bundles      compare two bundles; returns a BundleDiff
    reduce_model      reduce a failing model to the fewest nodes; returns a ReduceReport
    verify_bundle     compare a bundle with its golden vectors or its model; returns a VerifyReport

Arguments and results.

    BundleDiff        the differences by kind; `to_json()`
    CompileOptions    the options of a compile; their names are also keywords of compile_model and partition_model
    CompileReport     summary, plan, output, notes, warnings, times; `to_json()`
    QueryResult       a mapping node → device, with the reason for every refusal; `to_json()`, `to_text()`
    SignReport        the digest, and the keys of the signatures; `to_json()`
    SigningKey        a private key
    Explanation       reasons of nodes, costs of partitions and transfers, other plans; `to_json()`
    VerifyReport      `ok`, and the difference of each output; `to_json()`
    ImportedModel     the normalised model
    ReduceReport      the sizes before and after, and the file; `to_json()`
    Reporter          base class of receivers of notes, warnings and progress

Errors. All are HeteroccError with `code`, `message`, `where` and `hint`; `heterocc.compiler.errors` has every class,
and docs/errors.md lists them. The families:

    HeteroccError     every error
    InputError        HC1xx: the model, another file or an option is at fault
    UsageError        HC120: an option is unknown or malformed, or contradicts another
    UnsupportedOpError  HC2xx: no device can run a node
    BundleError       HC3xx: a bundle is damaged, or not for this machine
    DeviceError       HC4xx: a device is unknown or missing, or it failed
    InternalError     HC902: a bug in heterocc

`__version__` is heterocc's version.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heterocc.artifacts.foreign import handlers_wait

if TYPE_CHECKING:
    from heterocc.artifacts.errors import (
        BundleError,
        DeviceError,
        HeteroccError,
        InputError,
        InternalError,
        UnsupportedOpError,
        UsageError,
    )
    from heterocc.artifacts.sign import SignReport, sign_bundle
    from heterocc.artifacts.signing.keys import SigningKey, create_key_pair, read_signing_key
    from heterocc.artifacts.version import __version__
    from heterocc.compiler.api.progress import Reporter
    from heterocc.compiler.checking.verify import VerifyReport, verify_bundle
    from heterocc.compiler.commands.calibrating import calibrate_model
    from heterocc.compiler.commands.explaining import explain_bundle, explain_model
    from heterocc.compiler.importer.model import ImportedModel
    from heterocc.compiler.importer.pipeline import import_model
    from heterocc.compiler.options import CompileOptions
    from heterocc.compiler.pipeline.compile import compile_model, partition_model
    from heterocc.compiler.pipeline.report import CompileReport
    from heterocc.compiler.regression.bundle_diff import diff_bundles
    from heterocc.compiler.regression.differences import BundleDiff
    from heterocc.compiler.regression.reduction.reduce import ReduceReport, reduce_model
    from heterocc.compiler.support.query import QueryResult, query_model
    from heterocc.passes.explain.explanation import Explanation

_NAMES = {
    "heterocc.artifacts.errors": "BundleError DeviceError HeteroccError InputError InternalError UnsupportedOpError "
    "UsageError",
    "heterocc.artifacts.sign": "SignReport sign_bundle",
    "heterocc.artifacts.signing.keys": "SigningKey create_key_pair read_signing_key",
    "heterocc.artifacts.version": "__version__",
    "heterocc.compiler.checking.verify": "VerifyReport verify_bundle",
    "heterocc.compiler.commands.calibrating": "calibrate_model",
    "heterocc.compiler.commands.explaining": "explain_bundle explain_model",
    "heterocc.compiler.importer.model": "ImportedModel",
    "heterocc.compiler.importer.pipeline": "import_model",
    "heterocc.compiler.options": "CompileOptions",
    "heterocc.compiler.pipeline.compile": "compile_model partition_model",
    "heterocc.compiler.pipeline.report": "CompileReport",
    "heterocc.compiler.api.progress": "Reporter",
    "heterocc.compiler.regression.bundle_diff": "diff_bundles",
    "heterocc.compiler.regression.differences": "BundleDiff",
    "heterocc.compiler.regression.reduction.reduce": "ReduceReport reduce_model",
    "heterocc.compiler.support.query": "QueryResult query_model",
    "heterocc.passes.explain.explanation": "Explanation",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BundleDiff",
    "BundleError",
    "CompileOptions",
    "CompileReport",
    "DeviceError",
    "Explanation",
    "HeteroccError",
    "ImportedModel",
    "InputError",
    "InternalError",
    "QueryResult",
    "ReduceReport",
    "Reporter",
    "SignReport",
    "SigningKey",
    "UnsupportedOpError",
    "UsageError",
    "VerifyReport",
    "__version__",
    "calibrate_model",
    "compile_model",
    "create_key_pair",
    "diff_bundles",
    "explain_bundle",
    "explain_model",
    "import_model",
    "partition_model",
    "query_model",
    "read_signing_key",
    "reduce_model",
    "sign_bundle",
    "verify_bundle",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use, because `heterocc --help` needs neither onnx nor TVM."""
    if name == "errors":
        return import_module("heterocc.compiler.errors")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with handlers_wait():
        home = import_module(_HOMES[name])
    return getattr(home, name)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted([*__all__, "errors"])
