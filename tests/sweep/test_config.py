"""Configurations: what is written is read back, and what is wrong is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bipareto.cli import main
from bipareto.errors import InvalidInput
from bipareto.methods import METHODS
from bipareto.methods.parts.hypergradient import CG, Neumann
from bipareto.methods.parts.scalarization import Fixed, Tracked
from bipareto.methods.parts.schedule import Complement, Constant, Cosine, Power
from bipareto.sweep import plan, sweep
from bipareto.sweep.config import SearchConfig, SweepConfig, TuneConfig, dump, load, to_dict
from bipareto.sweep.grammar import dump_number, load_number
from bipareto.sweep.typed import parse

SMALL: dict[str, Any] = {
    "problem": {"name": "quadratic", "options": {"dim": 2}},
    "method": {"hyperparameters": "plain"},
    "steps": 10,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """SMALL with one key set, given by its path."""
    data = json.loads(json.dumps(SMALL))
    *sections, key = path.split(".")
    inner = data
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[key] = value
    return data


def test_yaml_goes_there_and_back(tmp_path: Path) -> None:
    text = """
    problem: {name: pl-sin2, options: {dim: 100}, starts: random}
    method: {name: momeha, set: {mu: 8, alpha_x: 1e-3, c: {power: [5, 0.45]}}}
    preferences: {vectors: [[0.7, 0.3], [1, 0]]}
    seeds: [0, 1, 2]
    compile: aot_eager
    engine: {name: ray, gpus: 0.5}
    """
    (tmp_path / "a.yaml").write_text(text)
    config = load(SweepConfig, tmp_path / "a.yaml")
    assert config.method.set == {"mu": 8, "alpha_x": 0.001, "c": Power(5, 0.45)}
    assert config.preferences.vectors == ((0.7, 0.3), (1.0, 0.0))
    (tmp_path / "b.yaml").write_text(dump(config))
    assert load(SweepConfig, tmp_path / "b.yaml") == config


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("stpes", 10, "stpes is not a key.*did you mean steps"),
        ("problem.nmae", "x", r"problem\.nmae is not a key.*did you mean name"),
        ("steps", "ten", r"steps is 'ten' \(text\); it must be a whole number"),
        ("steps", "10", "steps is '10'.*without the quotes"),
        ("steps", True, "steps is True"),
        ("steps", 0, "steps is 0; it must be at least 1"),
        ("steps", 1.5, "steps is 1.5"),
        ("seeds", [], "seeds is .*at least one"),
        ("seeds", [0, "1"], r"seeds\[1\] is '1'"),
        ("seeds", [0, 0], "seeds is .*different"),
        ("seeds", 3, "seeds is 3 .*a list"),
        ("tol", float("nan"), "tol is nan.*finite"),
        ("compile", 3, "compile is 3 .*true or false or text"),
        ("engine.name", "slurm", r"engine\.name is 'slurm'.*local, processes, ray"),
        ("engine.workers", 0, r"engine\.workers is 0"),
        ("preferences.vectors", [[0.5, 0.5], [1.0]], r"preferences\.vectors is .*one length"),
        ("checkpoint.keep", 0, r"checkpoint\.keep is 0"),
        ("problem", "pl-sin2", "problem is 'pl-sin2'.*a mapping with the keys name"),
        ("method.set", {"c": {"pwoer": [1, 2]}}, r"method\.set\.c is .*\{power"),
        ("method.set", {"c": {"power": [1]}}, r"method\.set\.c\.power is .*\[scale, power\]"),
    ],
)
def test_a_wrong_key_is_named_with_the_remedy(path: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse(SweepConfig, changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("problem.name", "nonsense", "problem 'nonsense' is not known"),
        (
            "problem.name",
            "no.such.module:make",
            r"problem\.name 'no.such.module:make' cannot be imported",
        ),
        ("problem.options", {"dim": "two"}, r"problem\.options\.dim is 'two'.*whole number"),
        ("problem.options", {"dim": -1}, r"problem\.options .*dim"),
        ("problem.options", {"size": 3}, r"problem\.options\.size is not known.*dim"),
        ("method.name", "sgd", r"method\.name is 'sgd'; choose"),
        ("method.set", {"mu": "eight"}, r"method\.set\.mu is 'eight'"),
        ("method.set", {"mu": -1}, r"method\.set.*mu = -1"),
        ("method.set", {"nu": 1}, r"method\.set\.nu is not known.*mu"),
        ("preferences.vectors", [[0.2, 0.2]], r"preferences\.vectors.*sums to"),
        ("preferences.vectors", [[0.2, 0.2, 0.6]], r"preferences\.vectors.*3 entries"),
    ],
)
def test_what_only_the_parts_know_is_named_too(
    path: str, value: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=words):
        sweep.sweep(parse(SweepConfig, changed(path, value)), tmp_path / "run")
    assert not (tmp_path / "run/manifest.json").exists()


def test_a_missing_key_and_a_wrong_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="problem is missing"):
        parse(SweepConfig, {"steps": 3})
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(SweepConfig, tmp_path / "none.yaml")
    for text, words in (
        ("a: [1", "is not YAML"),
        ("steps: 1\nsteps: 2", "'steps' occurs twice"),
        ("? [1]\n: 2", "is not YAML"),
        ("", "is None"),
    ):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(InvalidInput, match=words):
            load(SweepConfig, tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    "value",
    [
        1,
        0.1,
        True,
        None,
        "stch",
        (1.0, 2.0),
        Constant(0.1),
        Power(1.0, -0.5),
        Complement(1, 2),
        Cosine(0.3, 100.0, 0.01),
        Fixed((0.0, 1.0)),
        Tracked(0.1),
        CG(10),
        Neumann(5, 0.1),
    ],
)
def test_numbers_go_there_and_back(value: Any) -> None:
    assert load_number(yaml.safe_load(yaml.safe_dump(dump_number(value))), "") == value


@pytest.mark.parametrize("name", METHODS)
def test_methods_go_there_and_back(name: str) -> None:
    method = METHODS[name]()
    written = {key: dump_number(value) for key, value in vars(method).items()}
    assert (
        METHODS[name](
            **{
                key: load_number(value, key)
                for key, value in json.loads(json.dumps(written)).items()
            }
        )
        == method
    )


def test_a_search_space_is_checked() -> None:
    good = {
        "sweep": SMALL,
        "space": {"mu": {"low": 1, "high": 2, "log": True}, "gamma": {"choices": [0.1, 0.2]}},
    }
    assert parse(TuneConfig, good).space["mu"] == SearchConfig(1.0, 2.0, True)
    for space, words in (
        ({}, "space is"),
        ({"mu": {"low": 2, "high": 1}}, r"space\.mu: low is 2"),
        ({"mu": 3}, r"space\.mu is 3.*low, high"),
    ):
        with pytest.raises(InvalidInput, match=words):
            parse(TuneConfig, {"sweep": SMALL, "space": space})


# Anything at all: an InvalidInput that names a key, or a configuration that goes there and back.

KEYS = st.sampled_from(
    [
        *to_dict(parse(SweepConfig, SMALL)),
        "name",
        "options",
        "set",
        "count",
        "vectors",
        "workers",
        "seconds",
        "power",
        "x",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["local", "momeha", "pl-sin2", "tuned"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS | st.text(max_size=3) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


def refusal(build: Callable[[], Any]) -> str:
    """The message with which something is refused; every section's name where it is not."""
    try:
        build()
    except InvalidInput as error:
        return str(error)
    return "problem.options method.set"


def refused_or_read(data: Any) -> None:
    try:
        config = parse(SweepConfig, data)
    except InvalidInput as error:
        message = str(error)
        assert any(
            word in message for word in ("it must be", "is not a key", "is missing", "write")
        ), message
    else:
        assert parse(SweepConfig, to_dict(config)) == config


@given(ANYTHING)
def test_anything_is_read_or_refused(data: Any) -> None:
    refused_or_read(data)


@given(
    st.sampled_from(
        [
            "steps",
            "seeds",
            "problem.options",
            "problem.name",
            "method.set",
            "preferences",
            "engine",
            "checkpoint",
            "tol",
            "compile",
        ]
    ),
    ANYTHING,
)
def test_one_odd_value_is_read_or_refused(path: str, value: Any) -> None:
    refused_or_read(changed(path, value))


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(InvalidInput):
        load(SweepConfig, path)


@given(
    st.dictionaries(
        st.sampled_from(["dim", "m", "seed", "noise", "size"]),
        st.none() | st.integers(-3, 4) | st.floats(-2, 2) | st.text(max_size=2),
        max_size=3,
    )
)
def test_any_options_of_a_problem_build_or_are_refused(given_options: dict[str, Any]) -> None:
    config = parse(SweepConfig, changed("problem.options", given_options)).problem
    assert "problem.options" in refusal(lambda: plan.build(config, [0]))


@given(
    st.dictionaries(
        st.sampled_from(["mu", "gamma", "c", "alpha_x", "ideal", "scalarization", "warmup", "nu"]),
        st.none()
        | st.booleans()
        | st.integers(-2, 9)
        | st.floats()
        | st.text(max_size=2)
        | st.just({"power": [1, 0.25]})
        | st.just([0.1, 0.2]),
        max_size=2,
    )
)
def test_any_numbers_of_a_method_build_or_are_refused(numbers: dict[str, Any]) -> None:
    config = parse(SweepConfig, changed("method.set", numbers))
    setup = plan.build(config.problem, [0])
    assert "method.set" in refusal(lambda: plan.method_of(config.method, setup, 10))


def test_families_of_preferences_by_name() -> None:
    from bipareto.methods import MOMEHA
    from bipareto.methods.parts.preferences import named
    from bipareto.sweep.plan import preferences_of

    for family, wanted in (
        ("random", named("random:7", 3)),
        ("strong", named("strong", 3)),
        ("das-dennis", named("7", 3)),
    ):
        config = parse(
            SweepConfig,
            {"problem": {"name": "quadratic"}, "preferences": {"family": family, "count": 7}},
        )
        assert [
            w.tolist() for w in preferences_of(config, MOMEHA(), 3) if w is not None
        ] == wanted.tolist()
    with pytest.raises(
        InvalidInput, match=r"preferences.family is 'fair' .* one of das-dennis, random, weak"
    ):
        parse(SweepConfig, {"problem": {"name": "quadratic"}, "preferences": {"family": "fair"}})


def test_the_old_word_for_hyperparameters_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "problem: {name: quadratic}\nmethod: {numbers: plain}\n"
    (tmp_path / "asked.yaml").write_text(text)
    with pytest.raises(InvalidInput, match="numbers is called hyperparameters now; rename it"):
        load(SweepConfig, tmp_path / "asked.yaml")
    with pytest.raises(SystemExit):
        main(["front", "quadratic", "--numbers", "plain"])
    assert "called --hyperparameters now" in capsys.readouterr().err
    # The folder of a run that was begun with the old word is still read.
    (tmp_path / "manifest.json").write_text("{}")
    assert load(SweepConfig, tmp_path / "asked.yaml").method.hyperparameters == "plain"
