"""`make demo`: compile SqueezeNet for GPU,CPU, run it in a fresh process, compare it with ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

RUN_IN_A_FRESH_PROCESS = """
import sys
import numpy as np
import heterocc.runtime
session = heterocc.runtime.load(sys.argv[1])
inputs = dict(np.load(sys.argv[2]))
np.savez(sys.argv[3], **session.run(inputs))
loaded = [m for m in ("tvm", "onnx", "onnxruntime", "heterocc.compiler") if m in sys.modules]
print(f"  {session!r}")
print(f"  {session.threads} threads; tvm, onnx, onnxruntime, the compiler: {loaded or 'none of them'} loaded")
"""


def main() -> int:
    """Run the demo; 0 when the bundle agrees with ONNX Runtime."""
    import numpy as np
    import onnxruntime as ort

    from heterocc.artifacts.errors import HeteroccError
    from heterocc.compiler import compile_model
    from heterocc.compiler.checking.compare import compare
    from heterocc.compiler.cli.console import ConsoleReporter
    from tests import models

    work = ROOT / "demo"
    work.mkdir(exist_ok=True)
    bundle, given, written = work / "squeezenet.hcb", work / "in.npz", work / "out.npz"
    model = models.light("squeezenet")
    print("heterocc compile squeezenet.onnx --devices GPU,CPU   (SqueezeNet 1.0 of the onnx package, seeded weights)")
    try:
        report = compile_model(model, bundle, reporter=ConsoleReporter(), devices="GPU,CPU")
    except HeteroccError as error:
        print(error)
        return error.exit_code
    print(f"  {report.summary}")
    print(f"  wrote {bundle.relative_to(ROOT)} ({report.size / 1e6:.1f} MB; variants: {', '.join(report.variants)})")

    quiet = ort.SessionOptions()
    quiet.log_severity_level = 3
    session = ort.InferenceSession(str(model), quiet, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    image = np.random.default_rng(7).standard_normal((1, 3, 224, 224)).astype(np.float32)
    np.savez(given, **{name: image})  # type: ignore[arg-type]
    print("\nin a fresh process: heterocc.runtime.load(...).run(...)", flush=True)
    command = [sys.executable, "-c", RUN_IN_A_FRESH_PROCESS, str(bundle), str(given), str(written)]
    if subprocess.run(command, check=False).returncode:
        return 1

    (output,) = session.get_outputs()
    (expected,) = session.run(None, {name: image})
    with np.load(written) as results:
        found = compare(output.name, results[output.name], expected)
    print("\nagainst ONNX Runtime on the same input")
    print(f"  max error {found.max_abs:.2e}, mean error {found.mean_abs:.2e}, SNR {found.snr:.0f} dB")
    print("  the same result" if found.ok else f"  WRONG: {found.reason}")
    print("\nnext:  . .venv/bin/activate")
    print("       heterocc bench demo/squeezenet.hcb")
    print("       heterocc inspect demo/squeezenet.hcb --plan")
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main())
