"""Where slices are executed: in this process, in worker processes, or on Ray.

An engine applies one function to many slice numbers and hands back results as they come.  The
function writes what must last to the run folder, so an engine may lose a worker and simply ask
again.  An engine changes no number: what a slice computes depends on the slice alone.
"""

from __future__ import annotations

from bipareto.problem.plugins import Registry
from bipareto.sweep.config import EngineConfig
from bipareto.sweep.engines.base import Engine, Local
from bipareto.sweep.engines.processes import Processes
from bipareto.sweep.engines.ray import Ray

__all__ = ["ENGINES", "Engine", "Local", "Processes", "Ray", "get"]

#: every engine by its name
ENGINES: Registry[type[Engine]] = Registry(
    "engines", {"local": Local, "processes": Processes, "ray": Ray}
)


def get(config: EngineConfig, threads: int = 1) -> Engine:
    """The engine of a configuration.

    Args:
        config: its name and size.
        threads: what each slice will use.
    """
    return ENGINES[config.name](config, threads)
