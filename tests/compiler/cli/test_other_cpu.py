"""Code for another instruction set than this machine's."""

import platform
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heterocc.artifacts.frozen import replaced
from heterocc.compiler.cli.main import app
from heterocc.runtime.cli import reports as cli_report
from heterocc.runtime.machine.compat import host
from tests.compiler.small import conv_net

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86-64 level")


def test_a_bundle_for_a_named_cpu_is_refused_if_that_lacks_its_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "m.hcb"
    model = conv_net(tmp_path / "m.onnx")
    made = CliRunner().invoke(
        app, ["compile", str(model), "-d", "CPU", "-p", "CPU.mcpu=x86-64-v3", "-o", str(bundle), "--no-check"]
    )
    assert made.exit_code == 0, made.output
    here = host()
    for features, fits in ((here.cpu_features | {"avx2", "fma"}, True), (here.cpu_features - {"avx2", "fma"}, False)):
        monkeypatch.setattr(cli_report, "host", lambda f=features: replaced(here, cpu_features=f))
        shown = CliRunner().invoke(app, ["check", str(bundle)]).stdout
        lacks = "the code for CPU needs CPU features that this machine lacks: avx2, fma"
        assert (lacks in shown) != fits and ("variant main: can run here" in shown) == fits, shown
