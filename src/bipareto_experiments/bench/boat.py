"""BOAT's Moreau-envelope operation (MESO) on two functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


class _Held(nn.Module):
    """A tensor as a module: BOAT's variables are parameters of models."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value.clone())


def lower_loss(feed: dict[str, Loss], upper: _Held, lower: _Held) -> Tensor:
    """g, handed over with the feed; BOAT finds this function by its dotted name."""
    return feed["loss"](upper.value, lower.value)


def upper_loss(feed: dict[str, Loss], upper: _Held, lower: _Held) -> Tensor:
    """F, likewise."""
    return feed["loss"](upper.value, lower.value)


class Boat:
    """One run: `step(g, F)` moves x, y and theta once.

    Args:
        boat: the module boat_torch.
        x0, y0: where to start.
        alpha_x, alpha_y, alpha_theta: step sizes of plain SGD and of theta.
        gamma, c0: of the envelope; BOAT's c_t is c0 (1 + t)^(1/4).
        log: the file that BOAT writes its losses to, anew at every step.
    """

    def __init__(
        self, boat: Any, x0: Tensor, y0: Tensor, *, alpha_x: float, alpha_y: float,
        alpha_theta: float, gamma: float, c0: float, log: Path,
    ) -> None:  # fmt: skip
        self.x, self.y = _Held(x0), _Held(y0)
        here = __name__
        self.problem = boat.Problem(
            {
                "fo_op": "MESO",
                "gm_op": None,
                "na_op": None,
                "lower_level_model": self.y,
                "upper_level_model": self.x,
                "lower_level_var": list(self.y.parameters()),
                "upper_level_var": list(self.x.parameters()),
                "lower_level_opt": torch.optim.SGD(self.y.parameters(), lr=alpha_y),
                "upper_level_opt": torch.optim.SGD(self.x.parameters(), lr=alpha_x),
                "lower_iters": 1,
                "device": "cpu",
                "loss_log_path": str(log),
                "fo_ol_batch_input": False,
                "return_grad": False,
                "MESO": {
                    "eta": alpha_theta,
                    "gamma_1": 1 / gamma,
                    "c0": c0,
                    "y_hat_lr": alpha_theta,
                },
            },
            {
                "lower_level_loss": {"function": f"{here}.lower_loss"},
                "upper_level_loss": {"function": f"{here}.upper_loss"},
            },
        )
        self.problem.build_ll_solver().build_ul_solver()
        self.t = 0

    def step(self, g: Loss, upper: Loss) -> None:
        """One iteration."""
        self.problem.run_iter({"loss": g}, {"loss": upper}, self.t)
        self.t += 1

    def age(self, steps: int) -> None:
        """Give it the log that so many steps leave behind; what it holds is what slows it."""
        entry = {"ll_loss": 1.2345678806304932, "ul_loss": 2.3456788063049316}
        self.problem.loss_history = [{"iter": t} | entry for t in range(steps)]
        self.problem._log_results = [{"upper_loss": 1.2345678806304932} for _ in range(steps)]
        self.t = steps
