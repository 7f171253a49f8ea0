"""`make container-check`: the steps of packaging/Dockerfile in a fresh folder, for machines without a container tool.

The RUN steps are taken from the file itself, with the folders of the image below a temporary folder. Where that is
possible the command then runs as another user (nobody) on a small bundle, with nothing but the image's environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
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
        size = sum(f.stat().st_size for f in (image / "opt").rglob("*") if f.is_file())
        print(f"  ENTRYPOINT heterocc-run run {bundle.name}: it runs; /opt/heterocc has {size / 1e6:.0f} MB")


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
