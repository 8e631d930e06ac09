"""Episodes: y is forgotten, learned on g alone, then both step jointly."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.problem.sampler import Role
from bipareto_experiments.episodic import Episodic
from helpers import nonconvex


def test_an_episode_is_its_parts_one_after_the_other() -> None:
    problem, x, y = nonconvex(m=2)
    inner = bp.MOMEHA(gamma=0.2, alpha_x=0.05, alpha_y=0.03, alpha_theta=0.04, c=3.0)
    method = Episodic(inner, warmup=3, eta=0.1, joint=2)
    state = method.init(problem, x, y, [0.3, 0.7])
    for t in range(3):
        learned = y
        for _ in range(3):
            learned = learned - 0.1 * torch.func.grad(problem.lower, argnums=1)(x, learned)
        joint = inner.init(problem, x, learned, [0.3, 0.7])
        joint = joint._replace(t=joint.t + 2 * t)
        for _ in range(2):
            joint, seen = inner.step(problem, joint)
        after, info = method.step(problem, state)
        torch.testing.assert_close(after.x, joint.x)
        assert torch.equal(after.y, y)
        torch.testing.assert_close(info["objectives"], seen["objectives"])
        assert float(after.t) == t + 1
        report = method.report(problem, state, after, info)
        torch.testing.assert_close(report["residual"], (after.x - x).norm())
        state, x = after, joint.x
    learned = method.learn(problem, x, y, torch.tensor(0.1).double(), None)
    assert not torch.equal(learned, y)


def test_what_an_episode_is_made_of() -> None:
    plain = Episodic(bp.MOMEHA())
    assert (plain.warmup, plain.eta, plain.joint) == (8, 1.0, 2)
    assert plain.oracles(3) == {
        "lower_gradients": 2 * 4 + 8,
        "upper_gradients": 2 * 6,
        "hessian_products": 0,
    }
    assert plain.roles(2) == (Role("lower"), Role("upper"))
    assert Episodic(bp.MBMOMEHA()).roles(1)[0] == Role("lower")
    assert plain.uses_preference
    assert not Episodic(bp.MOML()).uses_preference
    assert plain.structure() == Episodic(bp.MOMEHA(gamma=5.0), eta=0.3).structure()
    assert plain.structure() != Episodic(bp.MOMEHA(), warmup=7).structure()
    assert plain.structure() != Episodic(bp.MOMEHA(), joint=1).structure()
    with pytest.raises(InvalidInput, match="joint"):
        Episodic(bp.MOMEHA(), joint=0)
    assert Episodic(bp.MOMEHA(), joint=1).joint == 1
