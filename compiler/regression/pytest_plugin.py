"""A plug-in of pytest: the fixture `heterocc_golden`, which compares compiled models with golden files.

pytest loads it in every run where heterocc is installed, so nothing else is imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

OPTION = "--heterocc-bless"
FOLDER = "heterocc_golden_dir"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rewrites golden files, and the setting for their directory."""
    group = parser.getgroup("heterocc", "compiled models")
    group.addoption(
        OPTION,
        action="store_true",
        help="rewrite the golden files of heterocc_golden; tests whose files change fail once",
    )
    parser.addini(FOLDER, "directory of the golden files of heterocc_golden, beside each test", default="golden")


class HeteroccGolden:
    """Compares compiled models with golden files in a directory beside the test."""

    def __init__(self, folder: Path, name: str, work: Path, *, bless: bool) -> None:
        self.folder = folder
        self._name = name
        self._work = work
        self._bless = bless

    def check(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        plan: bool = True,
        numbers: bool = True,
        kernels: bool = False,
        rtol: float | None = None,
        atol: float | None = None,
        **options: Any,
    ) -> Path:
        """Compile a model and fail the test if it differs from its golden files; return the path of the bundle.

        `options` are those of `heterocc.compiler.compile_model`; a bundle (`.hcb`) is taken as it is. `plan` compares
        the placement of all variants, `kernels` their kernels, and `numbers` the outputs of a run on stored inputs,
        with the tolerances of `heterocc verify` or `rtol` and `atol`. The files are named after `name`, by default
        after the test.
        """
        __tracebackhide__ = True
        # Imported here: the compiler takes a second to load.
        from heterocc.artifacts.errors import HeteroccError
        from heterocc.compiler.regression.golden import GoldenCheck, check_golden, explain

        check = GoldenCheck(self.folder, self._bless)
        failure: HeteroccError | None = None
        bundle = Path(model)
        try:
            bundle = check_golden(
                check, model, name or self._name, self._work, plan=plan, numbers=numbers, kernels=kernels,
                rtol=rtol, atol=atol, **options,
            )  # fmt: skip
        except HeteroccError as error:
            failure = error
        text = explain(check, failure, OPTION)
        if text is not None:
            pytest.fail(text, pytrace=False)
        return bundle


@pytest.fixture
def heterocc_golden(request: pytest.FixtureRequest, tmp_path: Path) -> HeteroccGolden:
    """Compare a compiled model with golden files: `heterocc_golden.check("model.onnx", devices="CPU")`."""
    folder = request.path.parent / str(request.config.getini(FOLDER))
    return HeteroccGolden(folder, request.node.name, tmp_path, bless=bool(request.config.getoption(OPTION)))
