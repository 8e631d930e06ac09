"""The run folders of a comparison: one for each method, so that it goes on when it was stopped."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

from bipareto.errors import InvalidInput
from bipareto.fronts.pareto import ParetoFront
from bipareto.methods import Method
from bipareto.sweep.builder import Setup
from bipareto.sweep.config import MethodConfig, SweepConfig, to_dict
from bipareto.sweep.reading import plan_of, returned
from bipareto.sweep.store import RunFolder
from bipareto.sweep.sweep import resume, sweep

__all__ = ["Kept"]


@dataclass(frozen=True)
class Kept:
    """Where the runs of a comparison are, and how they are made.

    Args:
        path: the folder of the comparison; that of a method is methods/NAME.
        config: of the runs, all but the method and its steps.
        setup: their problem, where it has been built already.
    """

    path: Path
    config: SweepConfig
    setup: Setup | None = None

    def begun(self, name: str) -> tuple[Method, int] | None:
        """The method as it was begun earlier, and its steps; None where it was not.  Runs of
        another question are refused.
        """
        path = self.path / "methods" / name
        if not RunFolder(path).exists():
            return None
        plan = plan_of(path, trusted=True)
        held, asked = to_dict(plan.config), to_dict(self.config)
        for key in ("problem", "preferences", "seeds", "compile"):
            if held[key] != asked[key]:
                raise InvalidInput(
                    f"{path} holds runs of another comparison ({key}: {held[key]}, not "
                    f"{asked[key]}); choose another folder, or the same settings to go on"
                )
        return plan.method, plan.config.steps

    def front(
        self, name: str, method: Method | None, steps: int, progress: bool | None
    ) -> tuple[ParetoFront, ParetoFront]:
        """The front of a method, begun or gone on with: as it was returned, and with the lower
        level solved again.

        Args:
            method: None tunes the one of that name, by a race where data comes in batches.
        """
        path = self.path / "methods" / name
        if RunFolder(path).exists():
            found = resume(path, progress=progress)
        else:
            asked = MethodConfig(name)
            if method is not None:
                own = {f.name: getattr(method, f.name) for f in fields(method)}
                asked = MethodConfig(name, "plain", own)
            config = replace(self.config, method=asked, steps=steps)
            found = sweep(config, path, setup=self.setup, progress=progress)
        y, _ = returned(path, trusted=True)
        return replace(found, y=y, lower_residual=None), found
