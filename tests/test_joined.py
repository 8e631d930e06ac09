"""A problem with y as one vector: every method takes the same step on it."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
from bipareto import tree
from bipareto.joined import Joined
from bipareto.methods import METHODS
from helpers import DICT_PROBLEM, dict_start

ALL = [name for name in METHODS if name != "meha"]  # for one objective only


def joined() -> Joined:
    return Joined(lambda: DICT_PROBLEM, dict_start()[1])


@pytest.mark.parametrize("name", ALL)
def test_a_step_is_that_on_the_tree(name: str) -> None:
    problem, method = joined(), METHODS[name]()
    state = method.init(DICT_PROBLEM, *dict_start())
    state, _ = method.step(DICT_PROBLEM, state)  # away from the start, where theta is y
    wanted, info = method.step(DICT_PROBLEM, state)
    found, seen = method.step(problem, problem.join(state))
    assert isinstance(found.y, torch.Tensor)
    assert found.y.shape == (3,)
    for a, b in zip(tree.leaves(problem.part(found, state)), tree.leaves(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(seen["objectives"], info["objectives"])


@pytest.mark.parametrize("name", ["mb-momeha", "wc-penalty"])
def test_runs_side_by_side(name: str) -> None:
    problem, method = joined(), METHODS[name]()
    states = [method.step(DICT_PROBLEM, method.init(DICT_PROBLEM, *dict_start(), weights))[0] for weights in ([0.2, 0.8], [0.7, 0.3])]
    many = tree.stack(states)
    found = torch.func.vmap(lambda state: method.step(problem, state)[0])(problem.join(many))
    parted = problem.part(found, tree.map_(lambda leaf: 0, many))
    for r, state in enumerate(states):
        for a, b in zip(tree.leaves(tree.select(parted, r)), tree.leaves(method.step(DICT_PROBLEM, state)[0]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_joining_and_parting_are_inverse() -> None:
    problem, method = joined(), bp.MBMOMEHA()
    state = tree.stack([method.init(DICT_PROBLEM, *dict_start())] * 2)
    vectors = problem.join(state)
    assert vectors.momentum.theta.shape == vectors.y.shape == (2, 3)
    assert vectors.x is not None
    again = problem.part(vectors, tree.map_(lambda leaf: 0, state))
    assert tree.structure(again) == tree.structure(state)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(again), tree.leaves(state), strict=True))
