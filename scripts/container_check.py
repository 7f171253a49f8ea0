"""`make container-check`: the steps of packaging/Dockerfile in a fresh folder, for machines without a container tool.

The RUN steps and the command are taken from the file itself, with the folders of the image below a temporary folder.
Where that is possible a small bundle then runs as another user (nobody), with nothing but the image's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

FILE = ROOT / "packaging" / "Dockerfile"
NOBODY = 65534


def steps() -> list[tuple[str, str]]:
    """The instructions of the file with their arguments."""
    text = re.sub(r"\\\n\s*", "", FILE.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def main() -> None:
    """Carry the steps out, and run a bundle."""
    from scripts.wheels import build, sample

    with tempfile.TemporaryDirectory(prefix="heterocc-image-") as name:
        image = Path(name)
        image.chmod(0o755)
        wheels = ROOT / "build" / "wheels"
        if not list(wheels.glob("heterocc_runtime-*.whl")):
            build(wheels)
        plain = {"PATH": os.environ["PATH"], "HOME": name, **_index()}
        for word, rest in steps():
            if word == "COPY":
                (image / "tmp" / "wheels").mkdir(parents=True)
                for wheel in ROOT.glob(rest.split()[0]):
                    shutil.copy(wheel, image / "tmp" / "wheels")
            elif word == "RUN" and not rest.startswith("useradd"):
                rest = rest.replace("/opt/", f"{image}/opt/").replace("/tmp/wheels", f"{image}/tmp/wheels")
                rest = rest.replace("python -m venv", f"{sys.executable} -m venv")
                print(f"  RUN {rest}")
                subprocess.run(["sh", "-euc", rest], env=plain, check=True, stdout=subprocess.DEVNULL)
        _, bundle, _ = sample(image)
        bundle.chmod(0o644)
        command = [str(image / "opt" / "heterocc" / "bin" / "heterocc-run"), "run", str(bundle)]
        environment = {"PATH": f"{image}/opt/heterocc/bin", "PYTHONUNBUFFERED": "1"}
        done = _run_as_nobody(command, environment, image) if os.getuid() == 0 else None
        if done is None:
            print("  not as the user nobody, who may not use this interpreter, or whom only root can become")
            done = subprocess.run(command, env=environment, cwd=image, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        served = image / "models"
        served.mkdir()
        shutil.copy(bundle, served)
        served.chmod(0o755)
        arguments = json.loads(next(rest for word, rest in steps() if word == "CMD"))
        _serve([command[0], *(str(served) if a == "/models" else a for a in arguments)], environment)
        print(f"  CMD {' '.join(arguments)}: it answers, and ends on SIGTERM")
        size = sum(f.stat().st_size for f in (image / "opt").rglob("*") if f.is_file())
        print(f"  ENTRYPOINT heterocc-run run {bundle.name}: it runs; /opt/heterocc has {size / 1e6:.0f} MB")


def _serve(command: list[str], environment: dict[str, str]) -> None:
    """Start the service, ask whether it is ready, and end it. Raises SystemExit if it is not, or does not end well."""
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        http, grpc = one.getsockname()[1], other.getsockname()[1]
    ready = f"http://127.0.0.1:{http}/v2/health/ready"
    service = subprocess.Popen([*command, "--http-port", str(http), "--grpc-port", str(grpc)], env=environment)
    try:
        for _ in range(300):
            if service.poll() is not None:
                raise SystemExit(f"the service ended with {service.returncode}")
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(ready, timeout=5),
            ):
                break
            time.sleep(0.1)
        else:
            raise SystemExit("the service was not ready in 30 seconds")
    finally:
        service.terminate()
        code = service.wait(60)
    if code != 0:
        raise SystemExit(f"the service ended with {code}")


def _run_as_nobody(
    command: list[str], environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str] | None:
    """Run a program as another user; None if that user may not read it or its interpreter."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
        )
    except PermissionError:
        return None
    return None if done.returncode != 0 and "Permission denied" in done.stderr else done


def _index() -> dict[str, str]:
    """The settings of pip in this process's environment."""
    return {name: value for name, value in os.environ.items() if name.startswith("PIP_")}


if __name__ == "__main__":
    main()
