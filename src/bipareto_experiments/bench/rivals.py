"""The environment in which rivals live: made by the command, beside ours, with our torch.

Rivals are no dependencies of this package.  They are installed into an environment of their own,
in which ours can be imported but nothing of ours is changed; each without what it pins, so that all
run on one torch.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from bipareto.errors import InvalidInput

#: name -> what pip installs, and whether its requirements are left out
RIVALS: dict[str, tuple[list[str], bool]] = {
    "boat_torch": (["boat-torch", "higher"], True),
    "torchjd": (["torchjd", "quadprog", "qpsolvers"], False),
    "torchopt": (["torchopt"], False),
    "jaxopt": (["jaxopt"], False),
    "optuna": (["optuna"], False),
    "pymoo": (["pymoo"], False),
    "botorch": (["botorch"], False),
}


def environment(folder: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of the rivals' environment, which is made where it is not there.

    A rival that cannot be installed is said to be missing; the suites name it as not measured.
    """
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    ready = folder / ".ready"
    if ready.exists():
        return python
    say(f"making an environment for the rivals in {folder}")
    try:
        venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    except (OSError, subprocess.CalledProcessError) as error:
        raise InvalidInput(
            f"--rivals {folder}: no environment can be made there ({error}); choose another folder"
        ) from error
    inside = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    # Ours come after theirs, so that what we have is not installed again.
    Path(inside, "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n", "utf-8")
    pins = folder / "pins.txt"
    pins.write_text("".join(f"{name}=={version(name)}\n" for name in ("torch", "numpy")), "utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for name, (packages, alone) in RIVALS.items():
        say(f"installing {name}")
        words = ["--no-deps"] if alone else ["-c", str(pins)]
        done = subprocess.run(
            [*pip, *words, *packages], check=False, capture_output=True, text=True
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["pip failed"]
            say(f"{name} cannot be installed: {lines[-1]}")
    ready.touch()
    return python


def run_there(python: Path, words: list[str]) -> int:
    """Run this command line in the rivals' environment, with the package that is running here."""
    source = str(Path(__file__).resolve().parents[2])
    places = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [str(python), "-m", "bipareto_experiments", *words]
    return subprocess.run(command, env=given, check=False).returncode


def load(name: str, missing: dict[str, str]) -> ModuleType | None:
    """The module of a rival; None, with the reason in `missing`, where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # noqa: BLE001
        # Whatever a rival stumbles over, the others are measured.
        try:
            found = version(name.replace("_", "-"))
            missing[name] = f"{found} is installed, but fails: {type(error).__name__}: {error}"
        except PackageNotFoundError:
            missing[name] = "not installed" + (
                "" if sys.prefix != sys.base_prefix else " (--rivals makes an environment)"
            )
        return None
