"""Options of the commands on bundles, in a form from which `heterocc-run` and `heterocc` make theirs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST = 999_999_999
"""The largest number of an option without another limit."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or the argument of a command if `flags` has no dash.

    `least` and `most` are limits of a number, `choices` all values of a text. `many` options may be given several
    times, and arguments be several; only arguments are `required` unless it is said. `completes` is what a shell
    completes: suffixes of files, or the name of a function of `heterocc`, whose help shows the option in a `panel`.
    """

    flags: str
    help: str
    kind: type = str
    default: Any = None
    many: bool = False
    least: float | None = None
    most: float = MOST
    choices: tuple[str, ...] = ()
    metavar: str = ""
    completes: str = ""
    shown_default: str = ""
    panel: str = ""
    required: bool | None = None

    @property
    def name(self) -> str:
        """The name of its value."""
        return self.flags.split()[0].strip("-").replace("-", "_")

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument."""
        return not self.flags.startswith("-")

    def read(self, text: str) -> int | float:
        """A number on the command line. Raises argparse.ArgumentTypeError for one outside the limits, or other text."""
        least = self.least or 0
        try:
            if self.kind is int and not (text.isascii() and text.isdecimal() and len(text) <= len(str(MOST))):
                raise ValueError
            if least <= (value := self.kind(text)) <= self.most:
                return value  # type: ignore[no-any-return]
        except ValueError:
            pass
        kind = "an integer" if self.kind is int else "a number"
        limits = f"of at least {least:g}" if self.most == MOST else f"from {least:g} to {self.most:g}"
        raise argparse.ArgumentTypeError(f"'{text}' is not {kind} {limits}")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add it to a parser."""
        given: dict[str, Any] = {"help": self.help.replace("%", "%%")}
        if self.kind is bool:
            parser.add_argument(*self.flags.split(), action="store_true", **given)
            return
        given["type"] = self.read if self.kind in (int, float) else self.kind
        if self.metavar:
            given["metavar"] = self.metavar
        if self.is_argument:
            parser.add_argument(self.flags, nargs="+" if self.many else None, **given)
            return
        if self.choices:
            given["choices"] = self.choices
        parser.add_argument(
            *self.flags.split(), action="append" if self.many else "store", default=self.default, **given
        )


def replaced(options: Iterable[Option], *others: Option) -> tuple[Option, ...]:
    """The options with others in place of those of the same names, and further ones after them."""
    new = {option.name: option for option in others}
    found = [new.pop(option.name, option) for option in options]
    return (*found, *new.values())


JSON = Option("--json", "Print the result as JSON.", bool)
BUNDLE = Option("bundle", "The bundle (.hcb).", Path, completes=".hcb")
INPUTS = Option(
    "--inputs -i",
    "in.npz, NAME=file.npy, NAME=file.bin (raw little-endian bytes), or a directory of .npy files; a single-input "
    "model needs no NAME. Default: seeded inputs.",
    many=True,
    completes=".npz .npy .bin",
)
DEVICES = Option(
    "--devices -d",
    "Variant to run, by its devices (CPU: the CPU-only one) or name; AUTO for the one on the most capable device, "
    "AUTO:VULKAN,CPU for the most capable of these, AUTO:-CPU without this; MULTI:GPU,CPU for requests on several at "
    "once; default: the first that can run.",
    completes="devices",
)
THREADS = Option("--threads -t", "CPU threads; default: all cores that the process may use.", int, least=1)
SEED = Option("--seed", "Seed of the generated inputs, for inputs that are not given.", int, default=0, least=0)
SHAPE = Option(
    "--shape",
    "Shape of a seeded input: NAME=8,3,224,224, if the bundle allows several. Repeatable.",
    many=True,
    metavar="NAME=DIMS",
)
PROFILE = Option("--profile", "Print time per partition, kernel and transfer.", bool)
TRACE = Option(
    "--trace", "With --profile: also write the profiled runs as a trace, for ui.perfetto.dev or Chrome.", Path
)
SIGNATURES = (
    Option(
        "--trusted-key",
        "Refuse the bundle unless this key signed it, before anything in it is parsed: a file of public keys, a "
        "directory of .pub files, or ed25519:… Repeatable; one of the keys suffices.",
        many=True,
        metavar="FILE",
    ),
    Option(
        "--require-signature",
        "Refuse a bundle that no trusted key signed; the keys are those of --trusted-key, or else of the file or "
        "directory in $HETEROCC_TRUSTED_KEYS. Without any key, nothing is loaded.",
        bool,
    ),
)

RUN = (
    BUNDLE,
    INPUTS,
    Option("--outputs -o", "out.npz, or a directory for one .npy file per output, created if missing.", Path),
    DEVICES,
    THREADS,
    SEED,
    SHAPE,
    Option(
        "--dim",
        "Size of a dynamic dimension of seeded inputs: batch=8. Repeatable.",
        many=True,
        metavar="NAME=SIZE",
    ),
    PROFILE,
    TRACE,
    *SIGNATURES,
    JSON,
)
BENCH = (
    BUNDLE,
    INPUTS,
    DEVICES,
    Option("--threads -t", "CPU threads, or several numbers to time; default: all usable cores.", metavar="N,…"),
    Option("--time", "Duration of the measurement in seconds.", float, default=5.0, least=0),
    Option(
        "--stable",
        "End earlier, when the median is known to so many percent (95 % confidence).",
        float,
        least=0.01,
        most=100,
        metavar="PERCENT",
    ),
    Option("--iterations -n", "Number of runs, instead of --time.", int, least=1),
    Option(
        "--hint",
        "latency: all cores for one request; throughput: one CPU thread for each of as many requests as there are "
        "cores, which may give fewer runs per second if a run takes microseconds. --threads and --requests override "
        "it.",
        choices=("latency", "throughput"),
    ),
    Option(
        "--requests -r",
        "Requests at a time, each from a caller of its own; default: 1, but with --hint throughput or MULTI as many as "
        "the session suggests.",
        int,
        least=1,
    ),
    Option("--warmup", "Warm-up runs before the measurement.", int, default=3, least=0),
    PROFILE,
    TRACE,
    Option("--percentiles", "Percentiles to show; default: 50,90,99.", metavar="P,…"),
    Option("--times", "Also write the time of every run to this file, as CSV.", Path),
    SEED,
    SHAPE,
    Option(
        "--dim",
        "Size of a dynamic dimension of seeded inputs, or several to time: n=1,8,32. Repeatable.",
        many=True,
        metavar="NAME=SIZES",
    ),
    Option("--batch", "Sizes of the dynamic dimension with which the inputs begin.", metavar="N,…"),
    *SIGNATURES,
    JSON,
    Option("--csv", "Print the result as CSV.", bool),
)
CHECK = (BUNDLE, DEVICES, *SIGNATURES, JSON)
INSPECT = (
    BUNDLE,
    Option("--plan", "Print the plan of every variant.", bool),
    Option("--members", "List the members with size and hash.", bool),
    Option("--kernels", "List the kernels and the nodes they compute.", bool),
    JSON,
)
SERVE = (
    Option(
        "models", "Bundles (.hcb), or folders with NAME.hcb and NAME/VERSION.hcb.", Path, many=True, completes=".hcb"
    ),
    Option("--host", "Address to listen on; 0.0.0.0 for all.", default="127.0.0.1"),
    Option("--http-port", "0: any free port.", int, default=8000, least=0, most=65535),
    Option("--grpc-port", "0: any free port.", int, default=8001, least=0, most=65535),
    Option("--no-grpc", "Answer over HTTP only.", bool),
    Option(
        "--devices -d",
        "Variant of every model, by its devices (CPU: the CPU-only one) or name; AUTO for the one on the most capable "
        "device; default: the first that can run.",
        completes="devices",
    ),
    Option("--threads -t", "CPU threads of one request.", int, default=1, least=1),
    Option("--workers", "Requests that run at the same time; default: one for each core.", int, least=1),
    Option("--queue", "Requests of one model that may wait or run; further ones get 429.", int, default=64, least=1),
    Option(
        "--batch",
        "Rows of waiting requests that may run together, along the first dimension; 1: each runs alone. Only for "
        "models whose batch is dynamic, and whose rows prove independent when they are loaded.",
        int,
        default=1,
        least=1,
    ),
    *SIGNATURES,
    Option("--max-request-mb", "The largest request in MiB.", int, default=64, least=1, most=2047),
    Option(
        "--max-message-mb",
        "The largest gRPC message in MiB, in both directions. While gRPC reads one, nobody else is answered: 0.8 ms "
        "for each MiB, more than 50 ms above 48. HTTP takes larger requests in pieces.",
        int,
        default=16,
        least=1,
        most=2047,
    ),
    Option(
        "--memory-mb",
        "Memory in MiB for all requests together: their data, arrays and answers, without what models use; default: "
        "1024, or four times the largest request.",
        int,
        least=1,
    ),
    Option("--max-connections", "Connections of each port, at most.", int, default=1000, least=1),
    Option(
        "--client-seconds",
        "Seconds that a client may take to send a request or to receive an answer, beside one for each MiB.",
        float,
        default=60.0,
        least=0.1,
    ),
    Option(
        "--allowed-host",
        "A name that requests over HTTP may have in their header Host; * for any. Default: the names of this machine "
        "if the service listens on it alone; any name otherwise, but for web pages.",
        many=True,
    ),
    Option(
        "--drain",
        "Seconds for which requests are still accepted after SIGTERM, while the service reports not ready.",
        float,
        default=1.0,
        least=0,
    ),
    Option("--tls-cert", "PEM file of the certificate, for TLS.", Path),
    Option("--tls-key", "PEM file of its private key.", Path),
    Option("--tls-client-ca", "PEM file of the authority of clients' certificates.", Path),
    Option("--log-requests", "Log every inference request.", bool),
    Option(
        "--otlp",
        "Send the requests and their steps to this address as spans of OpenTelemetry; needs the extra `otel`.",
        metavar="URL",
    ),
    Option("--trace", "Write the requests and their steps as a trace, for ui.perfetto.dev or Chrome.", Path),
)
