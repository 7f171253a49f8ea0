from __future__ import annotations

from pathlib import Path

import pytest

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.runtime.cli.reports import check_bundle, print_bundle, print_check
from tests.compiler.small import conv_net

SENTENCE = "no result of this bundle was compared with ONNX Runtime when it was compiled"


@pytest.mark.parametrize("checked", [True, False])
def test_a_bundle_of_which_nothing_was_checked_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], checked: bool
) -> None:
    bundle = tmp_path / "m.hcb"
    compile_model(conv_net(tmp_path / "m.onnx"), bundle, devices=["CPU"], check=checked)
    report = check_bundle(bundle)
    assert report["checked"] is checked
    print_check(report)
    with open_bundle(bundle) as opened:
        print_bundle(opened, plan=False, members=False, kernels=False)
    assert capsys.readouterr().out.count(SENTENCE) == (0 if checked else 2)
