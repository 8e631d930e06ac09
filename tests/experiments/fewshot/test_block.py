"""The fused block learner against the plain one: on a GPU where there is one, else in Triton's
interpreter (skipped without Triton).
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem import oracle, tree
from bipareto.problem.tree import Tree
from bipareto_experiments.fewshot.network import Network

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported
pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

PLAIN = Network("block", channels=4, blocks=2, size=8)
FUSED = replace(PLAIN, fused=True)
IMAGES, TASKS = 10, 2


@pytest.fixture(autouse=True)
def _exact() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def learners() -> Tree:
    stream = torch.Generator().manual_seed(3)
    return tree.map_(
        lambda leaf: (leaf + 0.3 * torch.randn(leaf.shape, generator=stream)).to(DEVICE),
        PLAIN.start(TASKS, 0)[1],
    )


def features() -> Tensor:
    return (
        torch.randn(TASKS, IMAGES, 4, 4, 4, generator=torch.Generator().manual_seed(4))
        .relu()
        .to(DEVICE)
    )


def gradients(network: Network, y: Tree, seen: Tensor) -> list[Tensor]:
    """In the learners and in the features, of a sum that weighs the tasks differently."""
    weights = torch.tensor([0.7, -1.9], device=DEVICE)
    return tree.leaves(oracle.grad(lambda v: (weights * network.losses(*v)).sum(), (y, seen)))


def agree(y: Tree, seen: Tensor) -> None:
    torch.testing.assert_close(FUSED.losses(y, seen), PLAIN.losses(y, seen), rtol=1e-5, atol=1e-6)
    for found, wanted in zip(gradients(FUSED, y, seen), gradients(PLAIN, y, seen), strict=True):
        assert (found - wanted).norm() <= 1e-5 * wanted.norm()


def test_values_and_all_gradients_agree() -> None:
    agree(learners(), features())


def test_equal_inputs_and_zeros_are_treated_alike() -> None:
    """Pooling takes the first of equal inputs, ReLU at 0 gives nothing back."""
    y = learners()
    centre = torch.zeros(TASKS, 4, 4, 3, 3, device=DEVICE)
    centre[:, range(4), range(4), 1, 1] = 1  # the convolution changes nothing
    y["block"] = {
        "weight": centre,
        "scale": torch.ones(TASKS, 4, device=DEVICE),
        "shift": torch.zeros(TASKS, 4, device=DEVICE),
    }
    half = (
        torch.randint(
            -1, 2, (TASKS, IMAGES // 2, 4, 4, 4), generator=torch.Generator().manual_seed(5)
        )
        .float()
        .to(DEVICE)
    )
    seen = torch.cat([half, -half], 1)  # of mean 0 exactly, so zeros stay zeros
    largest = torch.nn.functional.max_pool2d(seen.flatten(0, 1), 2)
    assert (largest == 0).any()
    agree(y, seen)


def test_patches_and_their_adjoint() -> None:
    seen = features().requires_grad_()
    found, wanted = FUSED._patches(seen), PLAIN._patches(seen)
    assert torch.equal(found, wanted)
    d = torch.randn(found.shape, generator=torch.Generator().manual_seed(6)).to(DEVICE)
    torch.testing.assert_close(
        torch.autograd.grad(found, seen, d)[0], torch.autograd.grad(wanted, seen, d)[0]
    )


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, in the interpreter
def test_a_nan_shows_in_its_own_task() -> None:
    seen = features()
    seen[1, 0, 0, 0, 0] = torch.nan
    assert FUSED.losses(learners(), seen).isnan().tolist() == [False, True]
    assert gradients(FUSED, learners(), seen)[-1].isnan().flatten(1).any(1).tolist() == [
        False,
        True,
    ]


def test_a_second_derivative_is_refused_unless_it_was_asked_for() -> None:
    y, seen = learners(), features()

    def bent(network: Network) -> list[Tensor]:
        leaves = [leaf.requires_grad_() for leaf in tree.leaves(y)]
        first = torch.autograd.grad(
            network.losses(tree.rebuild(y, leaves), seen).sum(), leaves, create_graph=True
        )
        return list(
            torch.autograd.grad(sum(g.square().sum() for g in first), leaves, allow_unused=True)
        )

    with pytest.raises(
        InvalidInput, match="first derivatives only; for a method with Hessians use Network"
    ):
        bent(FUSED)
    for found, wanted in zip(bent(replace(FUSED, twice=True)), bent(PLAIN), strict=True):
        torch.testing.assert_close(found, wanted)
