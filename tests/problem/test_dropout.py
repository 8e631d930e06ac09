"""Masks of dropout layers: unrelated where plain PyTorch draws anew, and the same where one draw is
meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import bipareto as bp

ONES = torch.ones(1, 4000)


def dropping(**parts: nn.Module) -> nn.Module:
    """A module with a parameter, and dropout layers under their names."""
    made = nn.Sequential()
    made.add_module("scale", nn.Linear(1, 1))
    for name, part in parts.items():
        made.add_module(name, part)
    return made


def problem_of(
    x: nn.Module, y: nn.Module, *losses: Callable[[Any, Any], Tensor], **options: Any
) -> tuple[bp.Problem, Any, Any]:
    return bp.Problem.from_modules(x=x, y=y, lower=losses[0], upper=list(losses), **options)


def agreement(*layers: Callable[[Any, Any], Tensor]) -> Tensor:
    """How often two layers drop the same entries of a training draw."""
    first, second = (layer(ONES) == 0 for layer in layers)  # type: ignore[call-arg]
    return (first == second).double().mean()


def test_layers_beside_each_other_have_masks_of_their_own() -> None:
    parts = {name: nn.Dropout(0.5) for name in ("drop1", "drop2")}
    problem, x, y = problem_of(
        dropping(drop1=nn.Dropout(0.5)),
        dropping(**parts),
        lambda up, low: agreement(low.drop1, low.drop2),  # names of one length, one parent
        lambda up, low: agreement(up.drop1, low.drop1),  # x's and y's
        lambda up, low: agreement(low.drop1, low.drop1),  # one layer, called twice
    )
    shares = problem.upper(x, y, problem.batch("upper", "train", 1))
    assert bool(((shares - 0.5).abs() < 0.05).all()), shares


def test_a_layer_that_is_held_twice_is_drawn_under_both_names() -> None:
    layer = nn.Dropout(0.5)
    net = dropping(a=layer, b=nn.Sequential(layer))
    problem, x, y = problem_of(
        nn.Linear(1, 1), net, *[lambda up, low: (low.b(ONES) == 0).double().mean()] * 2
    )
    shares = problem.upper(x, y, problem.batch("upper", "train", 1))
    assert bool(((shares - 0.5).abs() < 0.05).all()), shares


def test_a_loss_sees_one_mask_whatever_was_evaluated_before() -> None:
    def place(up: Any, low: Any) -> Tensor:
        return (low.drop(ONES) * torch.arange(4000)).sum() * low.scale.weight.sum()

    problem, x, y = problem_of(nn.Linear(1, 1), dropping(drop=nn.Dropout(0.5)), place, place)
    batch = problem.batch("upper", "train", 1)
    f, alone = problem.upper(x, y, batch), problem.objective(1, x, y, batch)
    assert f[0] == f[1] == alone == problem.upper(x, y, batch)[0]
    at_y, at_theta = problem.lower_pair(x, y, y, batch)
    assert at_y == at_theta == problem.lower(x, y, batch)
    assert f[0] != problem.upper(x, y, problem.batch("upper", "train", 2))[0]


def test_work_in_common_has_a_mask_of_its_own_that_y_and_theta_share() -> None:
    def common(up: Any) -> Any:
        return up.drop(ONES) == 0

    def loss(up: Any, low: Any, dropped: Any) -> Tensor:
        again = (up.drop(ONES) == 0) == dropped
        return again.double().mean() * low.weight.sum()

    problem, x, y = problem_of(
        dropping(drop=nn.Dropout(0.5)), nn.Linear(1, 1), loss, loss, shared=common
    )
    y = {"weight": torch.ones(1, 1), "bias": y["bias"]}
    batch = problem.batch("lower", "train", 1)
    at_y, at_theta = problem.lower_pair(x, y, y, batch)
    assert at_y == at_theta == problem.lower(x, y, batch)
    assert abs(float(at_y) - 0.5) < 0.05


def test_hooks_of_a_dropout_layer_are_kept() -> None:
    layer = nn.Dropout(0.5)
    layer.register_forward_hook(lambda module, given, out: out + 3)
    problem, x, y = problem_of(
        nn.Linear(1, 1), dropping(drop=layer), *[lambda up, low: low.drop(ONES).mean()] * 2
    )
    assert float(problem.lower(x, y, problem.batch("lower", "full"))) == 4
