"""What is installed, which CPU and GPU are there, and what will be fast: `bipareto doctor env`."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

#: packages that are optional, and what they are for
EXTRAS = {
    "plotly": "pages (bipareto report) and fronts to look into in notebooks",
    "pandas": "front.to_dataframe()",
    "optuna": "bipareto tune",
    "ray": "sweeps on a cluster",
    "tensorboard": "--track tensorboard",
    "mlflow": "--track mlflow",
    "wandb": "--track wandb",
    "pillow": "image sets",
}
CORE = ("bipareto", "torch", "numpy", "scikit-learn", "matplotlib", "moocore")


def environment() -> dict[str, Any]:
    """Versions (None where a package is missing), the CPU, the GPUs, and advice in words."""
    gpus = [
        {"name": seen.name, "gigabytes": round(seen.total_memory / 2**30, 1)}
        for seen in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _version(name) for name in (*CORE, *EXTRAS)},
        "cpu": {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        },
        "gpus": gpus,
        "compiler": next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None),
    }
    return found | {"advice": _advice(found)}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _advice(found: dict[str, Any]) -> list[str]:
    """What will be fast here, and what to change."""
    words = []
    if found["gpus"]:
        words.append(
            "put x0 and y0 on cuda: fronts of networks run side by side there; small plain "
            "functions stay faster on the CPU"
        )
    else:
        words.append("no GPU is seen by torch: everything runs on the CPU")
    if found["compiler"] is None:
        words.append(
            "no C++ compiler: steps on the CPU are not compiled, and long runs of small problems "
            "take several times as long; install g++ or clang++"
        )
    else:
        words.append("long runs of small problems are compiled by themselves (compile=None)")
    cores, threads = found["cpu"]["cores"] or 1, found["cpu"]["threads"]
    if cores > 1:
        words.append(
            f"torch uses {threads} of {cores} cores (OMP_NUM_THREADS); small tensors gain nothing "
            "from a second one, and sweeps are faster with --engine processes, one thread each"
        )
    missing = [name for name in EXTRAS if found["packages"][name] is None]
    return words + [
        f"{name} is missing, for {EXTRAS[name]}: pip install {name}" for name in missing
    ]


def in_words(found: dict[str, Any]) -> str:
    """The same for people."""
    cpu = found["cpu"]
    here = [f"{name} {number}" for name, number in found["packages"].items() if number]
    gpus = ", ".join(f"{gpu['name']} ({gpu['gigabytes']} GB)" for gpu in found["gpus"]) or "none"
    lines = [
        f"Python     {found['python']} on {found['system']}",
        f"installed  {', '.join(here)}",
        f"CPU        {cpu['cores']} cores, {cpu['threads']} threads, {cpu['instructions']}",
        f"GPU        {gpus}",
        f"compiler   {found['compiler'] or 'none'}",
    ]
    return "\n".join([*lines, *(f"- {word}" for word in found["advice"])])
