"""One's own loop: an object shaped like an optimizer.

    optimizer = Optimizer(problem, x0, y0, MBMOMEHA(...), preferences=[[0.3, 0.7], [0.7, 0.3]])
    for batch_lower, batch_upper in my_loader:
        seen = optimizer.step({"lower": batch_lower, "upper": batch_upper})

It holds the states of one or several runs and moves them all by one step of the method; checkpoints
are its `state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bipareto.errors import InvalidInput
from bipareto.methods import Method
from bipareto.methods.base import Draw, Info, State
from bipareto.methods.parts.preferences import as_preference
from bipareto.problem import Problem, tree, validation
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree
from bipareto.run.loop import LoopOptions, as_method
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw


class Optimizer:
    """Runs of a method that are stepped by hand.

    Args:
        problem, x0, y0: as `solve` takes them, e.g. from `Problem.from_modules`.
        method: a method with its numbers; its schedules are functions of the steps taken here.
        preferences: (R, m), one run for each; None is one run with equal weights (or without
            preferences, for methods that have none).
        compile: True, or a backend's name, compiles the step.
        seed: which draws `step()` without batches makes.

    >>> import torch, bipareto as bp
    >>> problem = Problem(
    ...     upper=lambda x, y: torch.stack([(x - 1)**2 + y**2, x**2 + (y - 1)**2]),
    ...     lower=lambda x, y: (y - x)**2,
    ... )
    >>> zero = torch.zeros((), dtype=torch.float64)
    >>> method = bp.MOMEHA(gamma=0.5, alpha_theta=0.2, alpha_x=0.2, alpha_y=0.2)
    >>> optimizer = Optimizer(problem, zero, zero, method, preferences=[[0.3, 0.7]])
    >>> for _ in range(3):
    ...     seen = optimizer.step()
    >>> seen["objectives"].shape, optimizer.steps
    (torch.Size([1, 2]), 3)
    """

    def __init__(
        self,
        problem: Problem,
        x0: Tree | nn.Module,
        y0: Tree | nn.Module,
        method: Method,
        *,
        preferences: Any = None,
        compile: bool | str = False,
        seed: int = 0,
    ) -> None:
        seed = validation.seed(seed)
        LoopOptions(compile=compile)
        start = as_method(method).prepare(problem, x0, y0)
        self.problem, self.method, self.seed = problem, method, seed
        self.m = start.objectives.shape[0]
        wanted = (
            [None]
            if preferences is None
            else list(as_preference(preferences, self.m).reshape(-1, self.m))
        )
        #: the method's states, stacked over runs: `state.x`, `state.y`
        self.state: State = tree.stack([method.begin(start, w) for w in wanted])
        self.steps = 0
        self._step = stepper(problem, method, batched=True, compile=compile)

    def step(self, batches: Mapping[str, Any] | None = None) -> Info:
        """Move all runs by one step; returns what the method saw, e.g. `objectives` (R, m).

        Args:
            batches: role -> batch.  "lower" and "upper" serve all roles of their level that are not
                named themselves; where objectives have data of their own, "upper" is a list with
                one batch each.  None draws from the problem's own data.
        """
        roles = self.method.roles(self.m)
        drawn = (
            draw(self.problem, roles, self.steps, [self.seed])
            if batches is None
            else self._by_role(roles, batches)
        )
        self.state, info = self._step(self.state, drawn)
        self.steps += 1
        return info

    def _by_role(self, roles: tuple[Role, ...], batches: Mapping[str, Any]) -> Draw:
        if self.problem.sampler is None:
            raise InvalidInput(
                "step was given batches, but the losses take none; make the problem with "
                "lower_data and upper_data, or a sampler"
            )
        if not isinstance(batches, Mapping):
            raise InvalidInput(
                f"step was given {validation.shown(batches)}; pass a dict, role -> batch, e.g. "
                f"{{'lower': ..., 'upper': ...}}"
            )
        known = dict.fromkeys([*(role.level for role in roles), *map(str, roles)])
        unknown = set(batches) - set(known)
        if unknown:
            raise InvalidInput(
                f"step was given batches for {', '.join(map(repr, unknown))}, which no role asks "
                f"for; the roles are {', '.join(known)}"
            )
        drawn = {}
        for role in roles:
            level, name = role.level, str(role)
            if name not in batches and level not in batches:
                raise InvalidInput(
                    f"step was given no batch for role {name!r}; pass {level!r} for all roles of "
                    f"that level, or {name!r} itself"
                )
            batch = batches[name] if name in batches else batches[level]
            # MOMEHA's own role is called "upper" too.
            for_all = name == level or name not in batches
            if (
                for_all
                and isinstance(batch, list)
                and level == "upper"
                and self.problem.per_objective
            ):
                batch = dict(enumerate(batch)) if role.objective is None else batch[role.objective]
            for leaf in tree.leaves(batch):
                if not isinstance(leaf, Tensor):
                    raise InvalidInput(
                        f"the batch for {name!r} holds {validation.shown(leaf)}; pass tensors, or "
                        "trees of them"
                    )
            drawn[role] = self.problem.with_key(role, self.steps, self.seed, batch)
        return drawn

    @property
    def x(self) -> Tree:
        """x of all runs, stacked."""
        return self.state.x

    @property
    def y(self) -> Tree:
        """y of all runs, stacked."""
        return self.state.y

    @torch.no_grad()
    def objectives(self) -> Tensor:
        """f(x, y) on all the data, (R, m)."""
        batch = self.problem.batch("upper", "full")
        runs = range(tree.flat_axis(self.x))
        return torch.stack(
            [
                self.problem.upper(tree.select(self.x, r), tree.select(self.y, r), batch)
                for r in runs
            ]
        )

    def write_back(
        self, x: nn.Module | Tree | None, y: nn.Module | Tree | None, run: int = 0
    ) -> None:
        """Copy one run's x and y into modules, as `Solution.write_back` does."""
        run = validation.count(
            run, "run", least=0, most=tree.flat_axis(self.x) - 1, instead="there are no more runs"
        )
        self.problem.write_back(tree.select(self.x, run), tree.select(self.y, run), x, y)

    def state_dict(self) -> dict[str, Any]:
        """All that a later `step` depends on, as tensors and plain values, for any store."""
        draws: Any = getattr(self.problem, "draws", None)
        return {
            "method": repr(self.method),
            "steps": self.steps,
            "seed": self.seed,
            "state": [leaf.detach().clone() for leaf in tree.leaves(self.state)],
            "data": draws.state_dict() if hasattr(draws, "state_dict") else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; the optimizer must have been made with the same
        problem, method and preferences.
        """
        if not isinstance(state, Mapping):
            raise InvalidInput(
                f"the checkpoint is {validation.shown(state)}; pass what Optimizer.state_dict() "
                "returned"
            )
        missing = {"method", "state", "steps", "seed", "data"} - set(state)
        if missing:
            raise InvalidInput(
                f"the checkpoint has no {', '.join(sorted(missing))}; pass what "
                "Optimizer.state_dict() returned, all of it"
            )
        if state["method"] != repr(self.method):
            raise InvalidInput(
                f"the checkpoint is of {state['method']}, but this optimizer runs {self.method!r}; "
                "make it with the same method"
            )
        steps, seed = (
            validation.count(state["steps"], "the checkpoint's steps"),
            validation.seed(state["seed"], "the checkpoint's seed"),
        )
        held, given = tree.leaves(self.state), state["state"]
        if not isinstance(given, Sequence) or not all(isinstance(leaf, Tensor) for leaf in given):
            raise InvalidInput(
                "the checkpoint's state is no list of tensors; pass what Optimizer.state_dict() "
                "returned, all of it"
            )
        kinds = [[(tuple(leaf.shape), leaf.dtype) for leaf in leaves] for leaves in (given, held)]
        if kinds[0] != kinds[1]:
            raise InvalidInput(
                "the checkpoint has other shapes or dtypes than this optimizer's runs; make it "
                "with the same x0, y0 and preferences"
            )
        if not all(torch.isfinite(leaf).all() for leaf in given if leaf.is_floating_point()):
            raise InvalidInput(
                "the checkpoint holds NaN or infinity: it was taken after the runs had failed; go "
                "back to an earlier one"
            )
        self.state = tree.rebuild(
            self.state, [new.to(old) for new, old in zip(state["state"], held, strict=True)]
        )
        self.steps, self.seed = steps, seed
        if state["data"] is not None and not hasattr(self.problem.draws, "load_state_dict"):
            raise InvalidInput(
                "the checkpoint holds positions of loaders, but this optimizer's problem has none; "
                "make it with the same problem"
            )
        if state["data"] is not None:
            draws: Any = getattr(self.problem, "draws", None)
            draws.load_state_dict(state["data"])
