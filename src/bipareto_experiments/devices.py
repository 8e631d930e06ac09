"""Where an experiment runs."""

from __future__ import annotations

import torch

from bipareto.errors import InvalidInput


def device_of(name: str | None) -> torch.device:
    """The device asked for; None is the GPU where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidInput(f"device {name!r} is not known; use cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(
            f"device {name!r} was asked for, but there is no CUDA device here; use --device cpu, "
            "or leave it out"
        )
    return device


def machine_of(device: torch.device) -> str:
    """What to write beside a result."""
    import platform

    return torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU"
