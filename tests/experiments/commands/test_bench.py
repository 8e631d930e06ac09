"""`bipareto bench`: its suites measure what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import bipareto as bp
from bipareto.cli import add_command, main
from bipareto_experiments.bench import alternatives, figures, methods, rivals
from bipareto_experiments.bench.cases import CASES, known
from bipareto_experiments.bench.cleaning import by_hand, cleaning, plain_method
from bipareto_experiments.bench.contenders import alternating, ours, random_search
from bipareto_experiments.bench.gpu import ResNet, hand_made, problem_of
from bipareto_experiments.bench.scaling import slope
from bipareto_experiments.bench.twin import twin_by_hand, twin_start
from bipareto_experiments.commands import bench


def test_an_unknown_suite_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    add_command("bench", bench)
    with pytest.raises(SystemExit):
        main(["bench", "speed"])
    assert "alternatives" in capsys.readouterr().err


def test_the_step_by_hand_is_the_step() -> None:
    case, method, w = cleaning(0, 40), plain_method(), torch.tensor([0.3, 0.7])
    state = method.init(case.problem, case.x0, case.y0, w)
    eager, functional = by_hand(case.f, case.g, method)
    hand = traced = (case.x0, case.y0, case.y0, torch.zeros(()))
    for _ in range(5):
        state, _ = method.step(case.problem, state)
        hand, traced = eager(*hand, w), functional(*traced, w)
    for other in (hand, traced):
        torch.testing.assert_close(other[0], state.x, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(other[1], state.y, rtol=1e-4, atol=1e-6)


def test_the_twin_by_hand_is_twin() -> None:
    problem, w = bp.problems.get("pl-sin2", dim=3), torch.tensor([0.3, 0.7], dtype=torch.float64)
    method = bp.Twin(rho=0.03, alpha_x=0.01, alpha_y=0.003)
    state = method.init(problem, problem.x0, problem.y0, w)
    hand = twin_start(problem.x0, problem.y0)
    for _ in range(3):
        state, _ = method.step(problem, state)
        hand = twin_by_hand(problem, method, w)[0](*hand)
    torch.testing.assert_close(hand[0], state.x)
    torch.testing.assert_close(hand[1], state.y)


def test_the_step_of_a_network_by_hand_is_the_step() -> None:
    method = bp.MOMEHA(gamma=1.0, alpha_theta=0.01, alpha_x=0.01, alpha_y=0.01, c=1.0)
    problem, x0, y0, net = problem_of(8, "cpu", width=2)
    w = torch.tensor([0.7, 0.3])
    state = method.init(problem, x0, y0, w)
    step, (x, *_) = hand_made(net, method, w, 8, "cpu")
    draw = {role: problem.sampler(role, 0, 0) for role in method.roles(2)}  # type: ignore[misc]
    for _ in range(2):
        state, _ = method.step(problem, state, draw)
        step()
    torch.testing.assert_close(x[0].detach(), state.x)
    assert 11.1e6 < sum(p.numel() for p in ResNet().parameters()) < 11.2e6


def test_a_ratio_is_the_median_over_rounds_and_a_claim_has_its_bound() -> None:
    times = figures.Times({"a": [1.0, 2.0, 9.0], "b": [2.0, 4.0, 3.0]})
    assert times.ratio("a", "b") == 0.5
    assert figures.Claim("", 1.2, 1.1).met is False
    assert figures.Claim("", 1.2, 1.1, "at least").met
    assert figures.Claim("", None, 1.0).words() == "not measured"


def test_a_rival_that_is_not_there_is_named() -> None:
    missing: dict[str, str] = {}
    assert rivals.load("no_such_rival", missing) is None
    assert missing == {"no_such_rival": "not installed"}


def test_the_slope_of_a_cube_is_three() -> None:
    assert slope([(n, 5 * n**3) for n in (1.0, 2.0, 7.0, 40.0)]) == pytest.approx(3)


def test_contenders_are_judged_alike_and_the_table_says_who_was_first(tmp_path: Path) -> None:
    case = known("quadratic", 0, dim=3)
    place = tmp_path / "alternatives"
    place.mkdir()
    runs = {
        "bipareto": ours(case, 0, 300),
        "alternating SGD": alternating(case, 0, 0.3),
        "random search": random_search(case, 0),
    }
    for name, found in runs.items():
        rows = alternatives.marks(case, found, 0.3)
        (place / f"{name}.json").write_text(
            json.dumps(
                {"case": "quadratic-5", "seed": 0, "contender": name, "marks": rows, "cap": 0.3,
                 "coordinates": 3, "reference": case.reference}
            )
        )  # fmt: skip
    found = figures.Figures("alternatives")
    alternatives.collect(found, place)
    path = found.write(tmp_path, "bipareto bench alternatives", [0])
    held = json.loads(path.read_text())["figures"]["curves"]["quadratic-5"]["0"]
    assert held["bipareto"][-1][2] > held["random search"][-1][2] > 0
    assert 5_000 < (tmp_path / "alternatives.png").stat().st_size < 15_000  # with a palette


def test_the_gradients_that_a_method_needs_are_counted() -> None:
    found = methods.gradients_to(bp.problems.get("quadratic", dim=2), "momeha", share=0.9)
    assert found["hypervolume"] >= 0.9
    assert found["gradients"] <= 8 * found["budget"] + 5_000


def test_every_case_is_there() -> None:
    assert set(methods.PROBLEMS) & set(CASES)
    assert sum(name.startswith(("pl-sin2", "quadratic")) for name in CASES) == 4
