"""Every diagnosis fires on a run that has the disease and on none that has not."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto import doctor
from bipareto.cli import main
from bipareto.errors import BiparetoWarning, InvalidInput
from helpers import DOUBLE, quadratic


def healthy(name: str, steps: int, **options: Any) -> tuple[Any, Any]:
    known = bp.problems.get(name, **options)
    kind = bp.MBMOMEHA if options.get("noise") else bp.MOMEHA
    return known, kind.tuned(known, known.x0, known.y0, steps=steps)


@pytest.mark.parametrize("name", bp.problems.names())
def test_known_problems_are_healthy(name: str) -> None:
    # A run too short to have settled is not healthy: two problems need more steps than the others.
    steps = {"tp2-s": 1500, "bistable": 1500}.get(name, 500)
    known, method = healthy(name, steps)
    preference = None if known.m == 1 else [0.7, *([0.3 / (known.m - 1)] * (known.m - 1))]
    found = bp.solve(
        known, known.x0, known.y0, preference=preference, method=method, steps=steps, compile=False
    )
    assert doctor.diagnose(found, start=(known.x0, known.y0)) == []


#: where noise brings a disease of its own, which the doctor rightly sees
NOISE_MAKES_ILL = {
    "merely-convex": "noise carries theta along the directions in which g is flat: it does lag "
    "there",
    "tp2-s": "MBMOMEHA.tuned keeps c at 2.2 for the sake of the noise, and the bias that leaves is "
    "two thirds of an objective's span",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", bp.problems.names())
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_fronts_of_known_problems_are_healthy(name: str, noise: float) -> None:
    if noise and name in NOISE_MAKES_ILL:
        pytest.skip(NOISE_MAKES_ILL[name])
    known, method = healthy(name, 2000, noise=noise)
    wanted = bp.preferences.grid(known.m, 4) if known.m > 1 else None
    if name == "bistable":
        # Middle preferences do have a disease there: what they ask for lies at the lower level's
        # maximum, in the gap of the front.
        wanted = torch.tensor([[0.8, 0.2], [0.2, 0.8]], dtype=DOUBLE)
    found = bp.front(
        known, known.x0, known.y0, preferences=wanted, method=method, steps=2000, compile=False
    )
    assert doctor.diagnose(found, start=(known.x0, known.y0)) == []


def test_noise_is_no_disease() -> None:
    known, method = healthy("pl-sin2", 600, noise=0.1, dim=3)
    found = bp.solve(known, known.x0, known.y0, method=method, steps=600, compile=False)
    assert doctor.diagnose(found, start=(known.x0, known.y0)) == []


GOOD: dict[str, Any] = {
    "gamma": 1.0,
    "alpha_theta": 0.3,
    "alpha_x": 0.5,
    "alpha_y": 0.3,
    "c": bp.schedule.Power(10.0, 0.3),
    "mu": 2.0,
}
WANTED = [[0.25, 0.75], [0.75, 0.25]]


def names(
    problem: bp.Problem,
    x0: Tensor,
    y0: Tensor,
    steps: int = 250,
    preferences: Any = WANTED,
    **changes: Any,
) -> list[str]:
    method = bp.MOMEHA(**(GOOD | changes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)  # of runs that have gone far, or too far
        found = bp.front(
            problem, x0, y0, preferences=preferences, method=method, steps=steps, compile=False
        )
    diagnoses = doctor.diagnose(found, start=(x0, y0))
    for diagnosis in diagnoses:
        assert "Remedy: " in str(diagnosis)
        assert "nan" not in str(diagnosis)
    return [diagnosis.name for diagnosis in diagnoses]


def test_the_run_that_the_diseases_are_made_from_is_healthy() -> None:
    assert names(*quadratic()) == []


class TestDiseases:
    @pytest.mark.filterwarnings("ignore:.*left the finite numbers")
    def test_steps_too_large_until_the_numbers_end(self) -> None:
        assert names(*quadratic(), alpha_x=300.0) == ["steps-too-large"]

    def test_what_is_in_use_is_no_remedy(self) -> None:
        """An objective that is undefined beyond x = 1.5 ends runs with tuned numbers."""
        problem = bp.Problem(
            lambda x, y: torch.stack([(y - 2).square(), (1.5 - y).sqrt() + y.square()]),
            lambda x, y: (y - x).square(),
        )
        zero = torch.zeros((), dtype=torch.float64)
        with pytest.warns(BiparetoWarning, match="left the finite numbers"):
            found = bp.front(problem, zero, zero, steps=200, compile=False)
        assert any(failure is not None for failure in found.failure)
        (said,) = [d for d in doctor.diagnose(found) if d.name == "steps-too-large"]
        assert found.method.coordinates == "fitted"
        assert "tuned" not in said.remedy

    def test_steps_too_large_for_ever(self) -> None:
        """g(x, y) = sqrt(1 + (y - x)^2) is flat far away: too large a step cycles and does not
        diverge.
        """
        _, x0, y0 = quadratic()
        problem = bp.Problem(
            lambda x, y: torch.stack(
                [
                    x.square().sum() + y.square().sum(),
                    (x - 1).square().sum() + (y - 1).square().sum(),
                ]
            ),
            lambda x, y: (1 + (y - x).square()).sqrt().sum(),
        )
        assert "steps-too-large" in names(problem, x0, y0, gamma=2.0, alpha_theta=3.0)
        assert "steps-too-large" not in names(problem, x0, y0, gamma=2.0)

    def test_theta_left_behind(self) -> None:
        assert names(*quadratic(), alpha_theta=1e-4, steps=100)[0] == "theta-lags"

    def test_a_lower_maximum(self) -> None:
        """The digest's trap: at kappa = alpha_theta/alpha_y = 4 the sine problem's maximum
        attracts.
        """
        known = bp.problems.get("sin-trap")
        method = bp.MOMEHA(
            gamma=0.4, alpha_theta=0.08, alpha_x=0.02, alpha_y=0.02, c=bp.schedule.Power(1.0, 0.3)
        )
        near = torch.full_like(known.x0, 0.8), torch.full_like(known.y0, 2.8)
        found = bp.solve(known, *near, method=method, steps=1000, compile=False)
        assert "lower-maximum" in [d.name for d in doctor.diagnose(found)]

    def test_the_bistable_problems_equal_preference(self) -> None:
        """By symmetry a run from x = y = 0, where g = y^4/4 - y^2/2 has its maximum, stays
        there.
        """
        known = bp.problems.get("bistable")
        zero = torch.zeros_like(known.x0), torch.zeros_like(known.y0)
        found = bp.solve(
            known,
            *zero,
            preference=[0.5, 0.5],
            method=bp.MOMEHA(gamma=0.1, c=10.0),
            steps=500,
            compile=False,
        )
        (diagnosis,) = doctor.diagnose(found)
        assert diagnosis.name == "lower-maximum"
        assert diagnosis.numbers["low"] == pytest.approx(-1, abs=1e-3)

    def test_a_penalty_too_weak(self) -> None:
        assert names(*quadratic(), c=0.05, alpha_x=0.005, alpha_y=0.01) == ["penalty-too-weak"]

    def test_a_penalty_too_strong(self) -> None:
        assert names(*quadratic(), c=1e5) == ["penalty-too-strong"]

    def test_remedies_of_one_method_do_not_contradict_each_other(self) -> None:
        weak = doctor.Diagnosis("penalty-too-weak", (0, 3), "a", "raise c", {"c": 1.0})
        strong = doctor.Diagnosis("penalty-too-strong", (1,), "b", "lower c", {"c": 2.0})
        other = doctor.Diagnosis("theta-lags", (2,), "c", "d")
        assert doctor.reconciled(doctor.Diagnoses([weak, other])) == [weak, other]
        both, rest = doctor.reconciled(doctor.Diagnoses([weak, other, strong]))
        assert (both.name, both.runs, rest) == ("no-penalty-fits", (0, 1, 3), other)
        assert "raise c" not in both.remedy
        assert "lower c" not in both.remedy
        assert both.numbers == {"weak c": 1.0, "strong c": 2.0}

    def test_features_that_collapse(self) -> None:
        """x scales the lower level, so x -> 0 closes the gap whatever y is."""

        def lower(x: Tensor, y: Tensor) -> Tensor:
            return (x.exp() * (y - 1).square()).sum() / 2 + 1e-6 * y.square().sum()

        def upper(x: Tensor, y: Tensor) -> Tensor:
            return torch.stack([1 + (y - 3).square().sum(), 1 + (y - 4).square().sum()])

        start = torch.zeros(3, dtype=DOUBLE), torch.full((3,), 3.0, dtype=DOUBLE)
        found = names(bp.Problem(upper, lower), *start, alpha_x=3.0, c=2.0, steps=500)
        assert "features-collapse" in found

    def test_a_scale_that_drowns_the_others(self) -> None:
        assert names(
            *quadratic(torch.tensor([1000.0, 1.0], dtype=DOUBLE)), c=bp.schedule.Power(10000.0, 0.3)
        ) == ["scale-drowns"]

    def test_a_preference_without_effect(self) -> None:
        """With mu next to nothing every preference weighs the objectives alike, up to w itself;
        equal objectives hide that too.
        """
        problem, x0, y0 = quadratic()
        same = bp.Problem(lambda x, y: problem.upper(x, y)[:1].expand(2), problem.lower)
        assert names(same, x0, y0) == ["preference-without-effect"]
        assert names(problem, x0, y0, preferences=[[0.5, 0.5], [0.5, 0.5]]) == []


class TestWatch:
    def test_it_warns_on_the_way_and_once(self) -> None:
        problem, x0, y0 = quadratic()
        method = bp.MOMEHA(**(GOOD | {"c": 0.05, "alpha_x": 0.005, "alpha_y": 0.01}))
        watch = doctor.Watch(problem, method, every=50)
        with pytest.warns(BiparetoWarning, match=r"at step \d+, penalty-too-weak") as caught:
            bp.front(
                problem,
                x0,
                y0,
                preferences=WANTED,
                method=method,
                steps=200,
                callbacks=[watch],
                compile=False,
            )
        assert len(caught) == 1
        assert set(watch.found) == {"penalty-too-weak"}

    def test_it_is_silent_on_a_healthy_run_and_changes_nothing(self) -> None:
        problem, x0, y0 = quadratic()
        method = bp.MOMEHA(**GOOD)
        watched, alone = (
            bp.solve(problem, x0, y0, method=method, steps=200, callbacks=callbacks)
            for callbacks in ([doctor.Watch(problem, method)], [])
        )
        assert torch.equal(watched.x, alone.x)


def test_methods_without_theta_are_examined_as_far_as_they_go() -> None:
    problem, x0, y0 = quadratic()
    found = bp.solve(problem, x0, y0, method=bp.FORUM(alpha_x=0.05, alpha_y=0.05), steps=300)
    assert doctor.diagnose(found) == []


def test_a_front_from_a_file_has_no_states(tmp_path: Any) -> None:
    problem, x0, y0 = quadratic()
    bp.front(problem, x0, y0, preferences=WANTED, method=bp.MOMEHA(**GOOD), steps=5).save(
        tmp_path / "front.npz"
    )
    with pytest.raises(InvalidInput, match="bipareto doctor RUN"):
        doctor.diagnose(bp.ParetoFront.load(tmp_path / "front.npz"))


def test_a_run_that_vmap_cannot_batch() -> None:
    _, x0, y0 = quadratic()

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [
                (x[x > -9] - 1).square().sum() + y.square().sum(),
                x.square().sum() + (y - 2).square().sum(),
            ]
        )

    problem = bp.Problem(upper, lambda x, y: (y - x).square().sum() / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        assert names(problem, x0, y0, steps=200) == []


class TestCommand:
    """`bipareto doctor RUN` on folders of both kinds."""

    def call(
        self, capsys: pytest.CaptureFixture[str], *words: object
    ) -> tuple[int, dict[str, Any]]:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        return int(end.value.code or 0), json.loads(capsys.readouterr().out.splitlines()[-1])

    def test_fronts(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        # c = 0.05 with the small steps that it needs, and what `tuned` finds.
        ill = [
            "--watch",
            "--hyperparameters",
            "plain",
            *(
                f"--set={setting}"
                for setting in ("c=0.05", "alpha_x=0.002", "alpha_y=0.01", "gamma=1.0")
            ),
        ]
        for name, numbers in (("well", []), ("ill", ill)):
            words = [
                "quadratic",
                "--dim",
                2,
                "--preferences",
                2,
                "--steps",
                500,
                "--out",
                tmp_path / name,
                "--json",
                "-q",
            ]
            _, told = self.call(capsys, "front", *words, *numbers)
            assert any("penalty-too-weak" in text for text in told["warnings"]) == (name == "ill")
        code, told = self.call(capsys, "doctor", tmp_path / "well", "--json")
        assert (code, told["diagnoses"], told["runs"]) == (0, [], 2)
        code, told = self.call(capsys, "doctor", tmp_path / "ill", "--json")
        assert code == 1
        assert [d["name"] for d in told["diagnoses"]] == ["penalty-too-weak"]

    def test_sweeps(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "front.yaml").write_text(
            "problem: {name: quadratic, options: {dim: 2}}\nmethod: {hyperparameters: tuned}\n"
            "preferences: {count: 3}\nsteps: 400\ncompile: false\nslice: 2\n"
        )
        self.call(
            capsys, "sweep", tmp_path / "front.yaml", "--out", tmp_path / "run", "--json", "-q"
        )
        code, told = self.call(capsys, "doctor", tmp_path / "run", "--json")
        assert (code, told["diagnoses"], told["runs"]) == (0, [], 3)

    def test_no_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["doctor", str(tmp_path)])
        assert "holds no run (there is no manifest.json)" in capsys.readouterr().err


def test_a_trained_network_is_not_called_a_lower_maximum() -> None:
    """y ends where a training ends, on a slope and among saddles; no envelope holds it there."""
    rows = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    data = (rows, rows.prod(1))

    def network(y: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(inputs @ y[:6].view(2, 3)) @ y[6:]

    problem = bp.Problem(
        lambda x, y, b: torch.stack([(network(y, b[0]) - b[1]).square().mean(), y.square().mean()]),
        lambda x, y, b: (
            (x[0].sigmoid() * (network(y, b[0]) - b[1]).square()).mean()
            + 0.01 * x[1].exp() * y.square().mean()
        ),
        sampler=bp.sampler.Minibatches(lower=data, upper=data, size=10),
    )
    y0 = 0.3 * torch.randn(9, generator=torch.Generator().manual_seed(1))
    front = bp.front(
        problem, torch.zeros(2), y0, preferences=[[0.5, 0.5]], method=bp.Twin(), steps=60
    )
    assert "lower-maximum" not in {found.name for found in bp.diagnose(front)}


class TestNetworks:
    """Troubles of trainings, each with the run that has it and the one that has not."""

    ROWS = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    Y0 = 0.5 * torch.randn(34, generator=torch.Generator().manual_seed(1))

    @staticmethod
    def network(y: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(inputs @ y[:24].view(4, 6)) @ y[24:30]  # the last four do nothing

    def problem(self, secret: bool = False) -> bp.Problem:
        """x mixes a right and a wrong target; what the upper level wants of its few rows is known
        to it alone if it is `secret`.
        """
        few = 12 if secret else 40
        right = self.ROWS[:, 0] * self.ROWS[:, 1]
        noise = torch.randn(120, generator=torch.Generator().manual_seed(2))

        def upper(x: torch.Tensor, y: torch.Tensor, b: tuple[torch.Tensor, ...]) -> torch.Tensor:
            error = (self.network(y, b[0]) - b[1]).square().mean()
            return torch.stack([error, 0.1 * y[:30].square().mean()])

        def lower(x: torch.Tensor, y: torch.Tensor, b: tuple[torch.Tensor, ...]) -> torch.Tensor:
            w = x.softmax(0)
            out = self.network(y, b[0])
            return w[0] * (out - b[1]).square().mean() + w[1] * (out - b[2]).square().mean()

        sampler = bp.sampler.Minibatches(
            lower=(self.ROWS, right, noise),
            upper=(self.ROWS[:few], (-2 * right if secret else right)[:few]),
            size=10,
        )
        return bp.Problem(upper, lower, sampler=sampler)

    def names(self, secret: bool = False, **hyperparameters: float) -> set[str]:
        problem, start = self.problem(secret), (torch.zeros(2), self.Y0)
        usual = {"gamma": 25.0, "c": 50.0, "alpha_x": 0.1, "alpha_y": 0.1, "alpha_theta": 0.15}
        method = bp.MBMOMEHA(**usual | hyperparameters)  # type: ignore[arg-type]
        front = bp.front(
            problem, *start, preferences=[[0.8, 0.2]], method=method, steps=250, progress=False
        )
        return {found.name for found in bp.diagnose(front, start)}

    def test_a_healthy_training_is_called_healthy(self) -> None:
        assert self.names() == set()

    def test_drift(self) -> None:
        # In flat directions y and theta are moved by each other alone.
        assert "drift" in self.names(gamma=0.5, alpha_theta=0.1, c=1.0)

    def test_leak(self) -> None:
        assert "leak" in self.names(secret=True, c=0.3)

    @pytest.mark.parametrize(("coordinates", "name"), [(2, "other-data"), (40, "leak")])
    def test_test_data_of_another_kind(self, coordinates: int, name: str) -> None:
        plain = self.problem()
        rows, right, _ = plain.batch("lower", "full")

        class Sampler(bp.sampler.Minibatches):
            def __call__(self, role: bp.sampler.Role, t: int, seed: int) -> Any:
                return (
                    (rows, -2 * right) if role.level == "test" else super().__call__(role, t, seed)
                )

        sampler = Sampler(plain.batch("lower", "full"), plain.batch("upper", "full"), size=10)
        problem = bp.Problem(
            plain.upper,
            lambda x, y, b: plain.lower(x[:2], y, b) + 0.01 * x.square().sum(),
            sampler=sampler,
        )
        problem.has_test = True
        start = torch.full((coordinates,), 0.1), self.Y0
        method = bp.Twin(rho=0.1, alpha_x=0.01, alpha_y=0.03)
        front = bp.front(
            problem, *start, preferences=[[0.8, 0.2]], method=method, steps=100, progress=False
        )
        assert {found.name for found in bp.diagnose(front, start)} == {name}

    def test_a_corner(self) -> None:
        assert "corner" in self.names(alpha_x=3e4)

    def test_a_race_has_no_false_alarm(self) -> None:
        start = torch.zeros(2), self.Y0
        front = bp.front(
            self.problem(), *start, preferences=[[0.8, 0.2]], steps=300, progress=False
        )
        assert bp.diagnose(front, start) == []
