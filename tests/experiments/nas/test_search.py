"""Architecture search as a problem: draws, pixels, objectives, and methods that run on it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.problem import oracle, tree
from bipareto.problem.sampler import Role
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.problem import OBJECTIVES, Cooling, Halves, Search, _drawn
from bipareto_experiments.nas.spaces import DARTS, NAS_BENCH_201
from bipareto_experiments.nas.supernet import Darts, NasBench201, Supernet
from experiments.nas.reference import random_genotype

SMALL = NasBench201(channels=2, size=8, classes=4)
IMAGES = torch.randint(
    256, (60, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
)
LABELS = torch.arange(60) % 4


def search(
    network: Supernet = SMALL, margin: int = 0, flip: bool = False, **options: Any
) -> Search:
    return Search(network, IMAGES, LABELS, Halves(60, batch=6, margin=margin, flip=flip), **options)


def test_the_halves_share_no_image_and_draws_are_pure() -> None:
    halves = Halves(60, batch=6, margin=2, flip=True)
    lower, upper = (
        set(halves(Role(level, "full"), 0, 0).rows.tolist()) for level in ("lower", "upper")
    )
    assert not lower & upper
    assert lower | upper == set(range(60))
    for level, own in (("lower", lower), ("upper", upper)):
        drawn = halves(Role(level, "theta"), 3, 1)
        again = Halves(60, batch=6, margin=2, flip=True)(Role(level, "theta"), 3, 1)
        assert all(torch.equal(a, b) for a, b in zip(drawn, again, strict=True))
        assert set(drawn.rows.tolist()) <= own
        assert len(set(drawn.rows.tolist())) == 6
        others = [
            halves(Role(level, "y"), 3, 1),
            halves(Role(level, "theta"), 4, 1),
            halves(Role(level, "theta"), 3, 2),
        ]
        assert not any(torch.equal(drawn.rows, other.rows) for other in others)
    many = torch.cat([halves(Role("lower", "x"), t, 0).corner for t in range(60)])
    assert set(many.unique().tolist()) == {0, 1, 2, 3, 4}
    assert (
        0.3
        < torch.cat([halves(Role("lower", "x"), t, 0).flip for t in range(60)]).double().mean()
        < 0.7
    )
    assert len(Halves(60, batch=6, full=10)(Role("upper", "full"), 0, 0).rows) == 10


def test_pixels_are_shifted_then_mirrored_images() -> None:
    problem = search(margin=2, flip=True)
    whole = problem.halves(Role("lower", "full"), 0, 0)
    plain = problem.pixels(whole)
    torch.testing.assert_close(
        plain * IMAGES.double().std((0, 2, 3)).view(3, 1, 1)
        + IMAGES.double().mean((0, 2, 3)).view(3, 1, 1),
        IMAGES[whole.rows].double(),
        rtol=1e-5,
        atol=1e-3,
    )
    moved = problem.pixels(
        whole._replace(
            corner=whole.corner + torch.tensor([1, -2]), flip=torch.ones_like(whole.flip)
        )
    )
    torch.testing.assert_close(moved[:, :, :-1, : 8 - 2], plain.flip(-1)[:, :, 1:, 2:])
    black = problem.pixels(whole._replace(corner=whole.corner + torch.tensor([1, 0])))[:, :, -1]
    torch.testing.assert_close(
        black,
        (-IMAGES.float().mean((0, 2, 3)) / IMAGES.float().std((0, 2, 3)))
        .view(1, 3, 1)
        .expand_as(black),
    )


@pytest.mark.parametrize(
    "network", [SMALL, Darts(channels=2, size=8, classes=4)], ids=["201", "darts"]
)
def test_objectives_at_a_discrete_architecture_are_shares_of_edges(network: Supernet) -> None:
    space = network.space
    genotype = random_genotype(space, 2)
    problem = search(network, reading="paper")
    _, y = network.start(0)
    chosen = [name for cell in genotype.cells.values() for _, name in cell]
    edges = len(space.edges) * len(space.kinds)
    draw = problem.batch("upper", "full")
    f = problem.upper(genotype.logits(), y, draw)
    assert f[2].item() == pytest.approx(sum("skip" in name for name in chosen) / edges, abs=1e-6)
    assert f[3].item() == pytest.approx(sum("pool" in name for name in chosen) / edges, abs=1e-6)
    k3, k5, one = 9 + 1, 25 + 1, {"nor_conv_3x3": 1.0, "nor_conv_1x1": 1 / 9}
    ratio = (
        one
        if space == NAS_BENCH_201
        else {
            "sep_conv_3x3": k3 / k5,
            "sep_conv_5x5": 1.0,
            "dil_conv_3x3": k3 / k5 / 2,
            "dil_conv_5x5": 0.5,
        }
    )
    assert f[1].item() == pytest.approx(
        sum(ratio.get(name, 0.0) for name in chosen) / edges, abs=1e-6
    )
    scores = network.logits(genotype.logits(), y, problem.pixels(draw))
    torch.testing.assert_close(f[0], torch.nn.functional.cross_entropy(scores, LABELS[draw.rows]))
    for i in range(4):
        assert problem.objective(i, genotype.logits(), y, draw) == f[i]


def test_the_lower_level_is_the_decayed_training_loss() -> None:
    problem, (x, y) = search(decay=0.01), SMALL.start(1)
    theta = tree.map_(lambda leaf: leaf + 0.1, y)
    draw = problem.batch("lower", "theta", 2, 0)
    assert problem.lower(x, y, draw).item() == pytest.approx(
        problem.loss(x, y, draw).item() + 0.005 * tree.squared_norm(y).item(), rel=1e-6
    )
    torch.testing.assert_close(
        problem.lower_pair(x, y, theta, draw),
        (problem.lower(x, y, draw), problem.lower(x, theta, draw)),
    )


def test_gradients_of_objectives_by_finite_differences() -> None:
    problem = search(Darts(channels=2, size=8, classes=4), decay=0.1)
    x, y = (tree.map_(torch.Tensor.double, part) for part in problem.network.start(0))
    draw = problem.sampler(Role("upper", "x", 0), 0, 0)
    direction, h = tree.map_(torch.randn_like, x), 1e-7
    for i in range(4):
        slope = tree.dot(
            oracle.grad(lambda at, i=i: problem.objective(i, at, y, draw), x), direction
        )
        ahead, behind = (
            problem.objective(i, tree.add_scaled(x, s, direction), y, draw) for s in (h, -h)
        )
        torch.testing.assert_close((ahead - behind) / (2 * h), slope, rtol=1e-4, atol=1e-7)


def test_a_front_of_searches_side_by_side_equals_searches_alone() -> None:
    problem, (x, y) = search(objectives=("loss", "flops"), margin=1, flip=True), SMALL.start(0)
    method, weights = bp.MBMOMEHA.paper("nas"), [[0.5, 0.5], [0.1, 0.9]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        front = bp.front(
            problem, x, y, preferences=weights, seeds=(0, 1), method=method, steps=3, compile=False
        )
        alone = bp.solve(
            problem, x, y, preference=weights[1], seed=1, method=method, steps=3, compile=False
        )
    (row,) = (i for i in range(4) if front.seed[i] == 1 and front.preference[i, 0] < 0.2)
    torch.testing.assert_close(front.x["cell"][row], alone.x["cell"], rtol=1e-4, atol=1e-6)
    assert len(front.x["cell"].unique(dim=0)) == 4


def test_preferring_flops_leads_to_fewer_flops() -> None:
    problem, (x, y) = search(objectives=("loss", "flops")), SMALL.start(0)
    method = bp.MBMOMEHA(gamma=8.0, mu=4.0, alpha_theta=0.025, alpha_x=8.0, alpha_y=0.025, beta=0.5)
    front = bp.front(
        problem, x, y, preferences=[[0.9, 0.1], [0.1, 0.9]], method=method, steps=8, compile=False
    )
    assert front.objectives[1, 1] < front.objectives[0, 1] - 0.02


def test_bad_input_is_refused() -> None:
    for make, message in [
        (lambda: Halves(60, batch=1), "batch = 1 is too small: batch norm"),
        (lambda: Halves(60, batch=31), "each half of 60 images has 30"),
        (lambda: Halves(60, batch=6, margin=-1), "margin = -1"),
        (lambda: Halves(60, batch=6, full=1), "full = 1; batch norm"),
        (lambda: Search(SMALL, IMAGES.float(), LABELS, Halves(60, 6)), "float32; need uint8"),
        (lambda: Search(SMALL, IMAGES[..., :4], LABELS, Halves(60, 6)), r"\(N, 3, 8, 8\)"),
        (lambda: Search(SMALL, IMAGES, LABELS + 1, Halves(60, 6)), "a class from 0 to 3"),
        (
            lambda: Search(SMALL, IMAGES[:50], LABELS[:50], Halves(60, 6)),
            "more rows than the 50 images",
        ),
        (
            lambda: Search(SMALL, IMAGES.to("meta"), LABELS, Halves(60, 6)),
            "images are on meta, labels on cpu",
        ),
        (lambda: search(objectives=("loss", "speed")), "choose some of loss, flops, skip, pooling"),
        (lambda: search(objectives=()), "choose some of"),
        (lambda: search(reading="mine"), "reading 'mine'"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            make()
    x = Genotype.of(NAS_BENCH_201, {"cell": torch.ones(6, dtype=torch.int64)}).logits()
    problem = search(Darts(channels=2, size=8, classes=4))
    with pytest.raises(InvalidInput, match=f"{DARTS.name} has cells of kind normal, reduction"):
        problem.check(x, problem.network.start(0)[1])


def test_all_four_objectives_pass_the_first_check_without_warning() -> None:
    problem = search()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert problem.check(*SMALL.start(0)) == len(OBJECTIVES) == 4


def test_drawn_architectures_come_as_often_as_the_mixture_says_and_vanish_where_logits_decide() -> (
    None
):
    halves = Halves(60, batch=6, numbers=NAS_BENCH_201.numbers, cooling=Cooling(1.0, 0.25, 6))
    problem, plain = (
        Search(SMALL, IMAGES, LABELS, of, objectives=("loss", "flops"))
        for of in (halves, Halves(60, batch=6))
    )
    x, y = problem.start(0)
    x = tree.map_(lambda leaf: 500 * leaf, x)
    draw = halves(Role("upper", "x"), 3, 7)
    # The same step again has the same noise, another step other noise, and all the data none.
    assert torch.equal(draw.noise, halves(Role("upper", "x"), 3, 7).noise)
    assert not torch.equal(draw.noise, halves(Role("upper", "x"), 2, 7).noise)
    assert draw.noise.shape == (31,)
    # The temperature falls by equal factors to the last one and stays there.
    cooled = [float(halves(Role("upper", "x"), t, 7).noise[-1]) for t in (0, 3, 6, 7)]
    assert cooled == pytest.approx([1.0, 0.5, 0.25, 0.25])
    full = halves(Role("upper", "full"), 0, 0)
    assert torch.equal(problem.upper(x, y, full), plain.upper(x, y, full))
    # The loss is that of the logits (x + G) / T; other objectives stay as they are.
    gumbel = -torch.log(-torch.log(draw.noise[:-1])).view(6, 5)
    quiet = draw._replace(noise=draw.noise[:0])
    expected = plain.upper({"cell": (x["cell"] + gumbel) / 0.5}, y, quiet)[0]
    torch.testing.assert_close(
        problem.upper(x, y, draw), torch.stack([expected, plain.upper(x, y, quiet)[1]])
    )
    certain = {
        "cell": 1e3 * torch.nn.functional.one_hot(torch.tensor([3, 1, 2, 0, 4, 3]), 5).float()
    }
    torch.testing.assert_close(problem.upper(certain, y, draw), plain.upper(certain, y, quiet))
    # Gumbel's property: an operation is the largest as often as softmax(x) says.
    many = torch.rand(20_000, 31, generator=torch.Generator().manual_seed(0))
    many[:, -1] = 0.5
    largest = torch.func.vmap(lambda noise: _drawn(x, noise)["cell"])(many).argmax(-1)
    often = torch.nn.functional.one_hot(largest, 5).double().mean(0)
    assert (often - x["cell"].softmax(-1)).abs().max() < 0.015
    with pytest.raises(InvalidInput, match=r"they need Halves\(..., numbers=30\)"):
        Search(SMALL, IMAGES, LABELS, Halves(60, batch=6, numbers=3))
    with pytest.raises(InvalidInput, match="must be above 0"):
        Halves(60, batch=6, numbers=30, cooling=Cooling(1.0, 0.0, 6))


def test_images_to_judge_by_are_seen_by_neither_level() -> None:
    rows = torch.arange(40, 60)
    own = Halves(40, batch=6, test=rows)
    assert own.rows["test"].equal(rows)
    aside = Halves(60, batch=6, test=None)
    assert [len(aside.rows[part]) for part in ("lower", "upper", "test")] == [30, 24, 6]
    for halves in (own, aside):
        seen = torch.cat(
            [
                halves(Role(level, name), t, 0).rows
                for level in ("lower", "upper")
                for name in ("x", "full")
                for t in range(9)
            ]
        )
        assert not set(seen.tolist()) & set(halves.rows["test"].tolist())
        assert len(set(torch.cat(list(halves.rows.values())).tolist())) == 60
    # Neither do they change how images are normalised.
    bright = torch.cat([IMAGES[:40], torch.full_like(IMAGES[40:], 255)])
    first, second = (
        Search(SMALL, images, LABELS, own).pixels(own(Role("lower", "full"), 0, 0))
        for images in (IMAGES, bright)
    )
    torch.testing.assert_close(first, second)
    with pytest.raises(InvalidInput, match="24 are left"):
        Halves(60, batch=25, test=None)


def test_accuracy_is_the_share_of_largest_scores_that_are_right() -> None:
    problem, (x, y) = search(), SMALL.start(0)
    draw = problem.batch("upper", "full")
    scores = SMALL.logits(x, y, problem.pixels(draw))
    assert float(problem.accuracy(x, y, draw)) == pytest.approx(
        float((scores.argmax(1) == LABELS[draw.rows]).double().mean())
    )
