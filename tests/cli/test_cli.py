"""The command line as a person or a script uses it."""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st

import bipareto as bp
from bipareto.cli import app, main
from bipareto.cli.output import Output
from bipareto.methods import METHODS
from bipareto.methods.parts.hypergradient import CG, FiniteDifference
from bipareto.methods.parts.scalarization import Tracked
from bipareto.methods.parts.schedule import Complement, Cosine, Power
from bipareto.sweep import grammar
from bipareto.sweep.durable import StoreError

SMALL = ("--dim", "2", "--steps", "300", "--no-compile")


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The whole of stdout is one JSON object."""
        return json.loads(self.stdout)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def call(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        captured = capsys.readouterr()
        code = left.value.code
        assert isinstance(code, int)
        return Done(code, captured.out, captured.err)

    return call


def fresh(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A new process and the processor seconds it took, which other work on the machine does not
    change.
    """
    before = os.times()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    after = os.times()
    return (
        done,
        after.children_user + after.children_system - before.children_user - before.children_system,
    )


def test_help_is_immediate_and_starts_without_torch() -> None:
    code = (
        "import sys\nfrom bipareto.cli import main\ntry:\n    main(['--help'])\n"
        "finally:\n    print(sorted({'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib', "
        "'moocore'} & set(sys.modules)))"
    )
    done, _ = fresh("-c", code)
    assert done.stdout.splitlines()[-1] == "[]"
    assert min(fresh("-m", "bipareto", "--help")[1] for _ in range(3)) < 0.5


def test_module_and_version() -> None:
    done, _ = fresh("-m", "bipareto", "--version")
    assert done.stdout.strip() == bp.__version__


def leaves(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """All commands by their words."""
    if not hasattr(command, "commands"):
        return {path: command}
    return {
        words: leaf
        for name, inner in command.commands.items()
        for words, leaf in leaves(inner, (*path, name)).items()
    }


COMMANDS = leaves(typer.main.get_command(app))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_in_help_can_be_typed(path: tuple[str, ...], run: Callable[..., Done]) -> None:
    shown = run(*path, "--help")
    assert shown.code == 0
    assert "Examples" in shown.stdout
    lines = [line.strip() for line in inspect.getdoc(COMMANDS[path].callback).splitlines()]
    found = [
        tuple(shlex.split(part)[1:])
        for line in lines
        if line.startswith("bipareto ")
        for part in re.split(" && |; ", line)
    ]
    assert any(words[: len(path)] == path for words in found)
    for words in found:
        (named,) = (
            known for known in COMMANDS if words[: len(known)] == known
        )  # its own, or one that goes with it
        context = COMMANDS[named].make_context(" ".join(named), list(words[len(named) :]))
        if {"problem", "method"} <= context.params.keys():
            name = context.params["problem"]
            assert name in bp.problems.names() or ":" in name
            assert context.params["method"] in ("auto", *METHODS)


def test_list_names_everything(run: Callable[..., Done]) -> None:
    data = run("list", "--json").json
    assert [entry["name"] for entry in data["problems"]] == list(bp.problems.names())
    assert [entry["name"] for entry in data["methods"]] == list(METHODS)
    assert all(entry["summary"] for entry in data["problems"])
    assert all(entry["summary"].endswith(".") for entry in data["methods"])
    marked = {entry["name"] for entry in data["methods"] if "RECONSTRUCTED" in entry["summary"]}
    assert marked == {"gmoba", "moco", "wc-mhgd", "wc-penalty"}
    shown = run("list")
    assert shown.code == 0
    assert all(name in shown.stdout for name in (*bp.problems.names(), *METHODS))


def test_front_json_and_files(run: Callable[..., Done], tmp_path: Path) -> None:
    done = run(
        "front",
        "quadratic",
        *SMALL,
        "--preferences",
        "3",
        "--seed",
        "0,1",
        "--out",
        str(tmp_path / "a"),
        "--json",
    )
    assert done.code == 0
    data = done.json
    assert data["runs"] == 6
    assert data["steps"] == 300
    assert data["problem"] == {"name": "quadratic", "dim": 2}
    assert data["method"]["name"] == "momeha"
    assert data["warnings"] == []
    assert data["seconds"] > 0
    assert "preference" in done.stderr  # the table

    found = bp.ParetoFront.load(tmp_path / "a" / "front.npz")
    known = bp.problems.get("quadratic", dim=2)
    assert data["hypervolume"] == found.hypervolume(data["reference"])
    assert (
        data["distance_to_front"] == float(known.distance_to_front(found.objectives).max()) < 0.01
    )
    assert data["position_error"] < 0.1
    assert found.lower_residual is not None
    assert float(found.lower_residual.max()) <= 1e-8

    with (tmp_path / "a" / "front.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["run", "seed", "w1", "w2", "f1", "f2", "distance"]
    assert [int(row["seed"]) for row in rows] == [0, 0, 0, 1, 1, 1]
    for name, values_ in (("w", found.preference), ("f", found.objectives)):
        read = torch.tensor(
            [[float(row[f"{name}{i + 1}"]) for i in range(2)] for row in rows], dtype=torch.float64
        )
        assert torch.equal(read, values_)  # every digit
    assert (tmp_path / "a" / "front.png").read_bytes().startswith(b"\x89PNG")

    run(
        "front",
        "quadratic",
        *SMALL,
        "--preferences",
        "3",
        "--seed",
        "0",
        "--seed",
        "1",
        "--out",
        str(tmp_path / "b"),
        "--quiet",
    )
    for name in ("front.csv", "front.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_front_table_is_the_answer_without_json(run: Callable[..., Done]) -> None:
    done = run("front", "quadratic", *SMALL, "--preferences", "2")
    assert done.code == 0
    assert done.stderr == ""
    assert "(0.667, 0.333)" in done.stdout
    assert "hypervolume" in done.stdout


def test_position_error_asks_the_question_the_method_answers(run: Callable[..., Done]) -> None:
    """With a linear scalarization the exact point is the linear one; judged as STCH points these
    runs would be far off.
    """
    data = run(
        "front",
        "quadratic",
        *SMALL,
        "--preferences",
        "3",
        "--set",
        "scalarization=linear",
        "--json",
    ).json
    assert data["method"]["scalarization"] == "linear"
    assert data["position_error"] < 0.05


def test_solve_json_and_files(run: Callable[..., Done], tmp_path: Path) -> None:
    done = run(
        "solve", "quadratic", *SMALL, "--preference", ".7,.3", "--out", str(tmp_path), "--json"
    )
    assert done.code == 0
    data = done.json
    known = bp.problems.get("quadratic", dim=2)
    objectives = torch.tensor([data["resolved"]["objectives"]], dtype=torch.float64)
    assert data["distance_to_front"] == pytest.approx(float(known.distance_to_front(objectives)))
    assert data["position_error"] < 0.1
    assert data["preference"] == [0.7, 0.3]
    assert data["reason"] == "steps"
    found = bp.ParetoFront.load(tmp_path / "front.npz")
    assert found.objectives.tolist() == [data["resolved"]["objectives"]]
    records = (tmp_path / "slices/00000/metrics.jsonl").read_text().splitlines()
    first, last = json.loads(records[0]), json.loads(records[-1])
    assert last["step"] == 300
    assert last["residual"] < first["residual"]


def test_demo_keeps_stdout_for_the_object(
    run: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Path, dict[str, Any]]] = []

    def run_demo(out: Path, **options: Any) -> dict[str, Any]:
        assert out.is_dir()
        calls.append((out, options))
        return {"words": "What the picture shows.", "hypervolume": float("nan")}

    monkeypatch.setattr("bipareto_experiments.demo.run_demo", run_demo)
    done = run("demo", "--out", str(tmp_path / "new"), "--steps", "5", "--json")
    assert done.code == 0
    assert done.json == {"words": "What the picture shows.", "hypervolume": None, "warnings": []}
    assert done.stderr == "What the picture shows.\n"
    assert run("demo", "--out", str(tmp_path)) == Done(0, "", "")  # there the demo itself speaks
    assert calls == [
        (tmp_path / "new", {"steps": 5, "quiet": True}),
        (tmp_path, {"steps": None, "quiet": False}),
    ]


def test_settings_and_printed_numbers_are_one_language(run: Callable[..., Done]) -> None:
    """What --json prints of a method, --set reads: the same run comes out."""
    first = run(
        "solve", "quadratic", *SMALL, "--set", "c=power(3, 0.3)", "--set", "mu=8", "--json"
    ).json
    assert first["method"]["c"] == "power(3.0,0.3)"
    assert first["method"]["mu"] == 8
    words = [
        word
        for key, value in first["method"].items()
        if key != "name"
        for word in ("--set", f"{key}={value}")
    ]
    second = run("solve", "quadratic", *SMALL, "--hyperparameters", "plain", *words, "--json").json
    assert second["x"] == first["x"]


def test_quiet_says_nothing(run: Callable[..., Done]) -> None:
    done = run("solve", "quadratic", *SMALL, "--quiet")
    assert done == Done(0, "", "")


def test_noise_and_momentum(run: Callable[..., Done]) -> None:
    """Two seeds see two noises; the same seed the same one."""
    words = (
        "solve",
        "pl-sin2",
        "--dim",
        "2",
        "--steps",
        "20",
        "--method",
        "mb-momeha",
        "--noise",
        "0.1",
        "--json",
        "--seed",
    )
    first, again, other = (run(*words, seed).json["x"] for seed in ("0", "0", "1"))
    assert first == again
    assert first != other


def test_warnings_reach_the_reader_and_the_object(run: Callable[..., Done]) -> None:
    done = run("solve", "quadratic", "--dim", "2", "--steps", "5", "--preference", "1,0", "--json")
    assert done.code == 0
    assert len(done.json["warnings"]) == 1
    assert "has a zero" in done.json["warnings"][0]
    assert done.stderr.startswith("warning: ")


def test_a_run_that_leaves_the_finite_numbers_fails_in_words(run: Callable[..., Done]) -> None:
    done = run(
        "solve", "quadratic", "--dim", "2", "--steps", "50", "--hyperparameters", "plain",
        "--set", "alpha_x=1e200", "--json",
    )  # fmt: skip
    assert done.code == 1
    assert done.json["reason"] == "nonfinite"
    assert done.json["failure"]["step"] < 50
    assert "NaN or infinite at step" in done.stderr


@pytest.mark.parametrize("method", [name for name in METHODS if name != "meha"])
def test_every_method_traces_a_front(method: str, run: Callable[..., Done]) -> None:
    done = run(
        "front",
        "quadratic",
        "--dim",
        "2",
        "--method",
        method,
        "--preferences",
        "2",
        "--steps",
        "5",
        "--json",
    )
    assert done.code == 0
    assert done.json["method"]["name"] == method
    assert done.json["runs"] == (2 if METHODS[method].uses_preference else 1)
    for key, value in done.json["method"].items():
        if key != "name" and isinstance(value, str):
            assert grammar.show(grammar.parse(value)) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["solve", "nope"], "choose one of quadratic"),
        (["front", "quadratic", "--method", "nope"], "choose auto, or one of momeha"),
        (["solve", "quadratic", "-o", "kappa=3"], "choose one of dim, m"),
        (["solve", "quadratic", "-o", "dim"], "key=value"),
        (["solve", "quadratic", "-o", "dim=many"], "dim must be a whole number"),
        (["solve", "quadratic", "-o", "dim=2.5"], "dim must be a whole number"),
        (["solve", "quadratic", "--set", "nope=3"], "choose one of gamma"),
        (["solve", "quadratic", "--set", "gamma=big"], "gamma must be a number"),
        (["solve", "quadratic", "--set", "gamma=-1"], "must be > 0"),
        (["solve", "quadratic", "--set", "c=pow(1)"], "power(...)"),
        (["solve", "quadratic", "--set", "c=power(1)"], "power(scale, power)"),
        (
            ["solve", "quadratic", "--method", "mb-momeha", "--set", "exact_weights=1"],
            "true or false",
        ),
        (["solve", "quadratic", "--hyperparameters", "best"], "choose one of tuned, plain, paper"),
        (["solve", "quadratic", "--preference", "a,b"], "write them with commas"),
        (["solve", "quadratic", "--preference", "0.7,0.4"], "sums to 1.1"),
        (["solve", "quadratic", "--preference", "0.5,0.3,0.2"], "has 3 entries"),
        (["solve", "quadratic", "--method", "meha"], "use MOMEHA"),
        (["front", "quadratic", "--seed", "a"], "--seed 0,1,2"),
    ],
)
def test_bad_input_is_one_line_that_names_the_remedy(
    words: list[str], message: str, run: Callable[..., Done]
) -> None:
    done = run(*words, "--steps", "5", "--json")
    assert done.code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = run("front", "quadratic", "--out", str(tmp_path / "file" / "below"))
    assert done.code == 2
    assert "choose another folder" in done.stderr


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9)


@given(
    st.one_of(
        numbers,
        st.booleans(),
        st.none(),
        st.builds(Power, numbers, numbers),
        st.builds(Complement, numbers, numbers),
        st.builds(Cosine, numbers, numbers, numbers, numbers),
        st.builds(Tracked, numbers),
        st.builds(CG, st.integers(1, 100), st.floats(1e-12, 1)),
        st.builds(
            FiniteDifference,
            st.integers(1, 100),
            st.floats(1e-3, 1),
            st.floats(1e-3, 1),
            st.booleans(),
        ),
    )
)
def test_show_and_parse_are_inverse(value: Any) -> None:
    read = grammar.parse(str(grammar.show(value)))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "open", "a.b", "1 if 2 else 3", "-x", "1/0", "mb-momeha", "", "f'{1}'"],
)
def test_other_text_is_a_word_and_never_runs(text: str) -> None:
    if text.startswith("__import__"):
        with pytest.raises(bp.errors.InvalidInput, match="is not known"):
            grammar.parse(text)
    else:
        assert grammar.parse(text) == text


@pytest.mark.parametrize(
    ("held", "whose", "arguments"),
    [
        ("front.json", "a front", ["sweep", "CONFIG"]),
        ("front.json", "a front", ["compare", "quadratic"]),
        ("comparison.json", "a comparison", ["experiment", "nas", "search", "--tiny"]),
        ("manifest.json", "a run", ["compare", "quadratic"]),
        ("manifest.json", "a run", ["experiment", "fewshot", "comparison", "--tiny"]),
    ],
)
def test_a_folder_of_something_else_is_left_alone(
    run: Callable[..., Done], tmp_path: Path, held: str, whose: str, arguments: list[str]
) -> None:
    config, folder = tmp_path / "sweep.yaml", tmp_path / "runs"
    config.write_text("problem: {name: quadratic}\nsteps: 5\ncompile: false\n")
    folder.mkdir()
    (folder / held).write_text("{}")
    done = run(*(str(config) if a == "CONFIG" else a for a in arguments), "--out", str(folder))
    assert done.code == 2
    assert f"already holds {whose} ({held}); choose another folder" in done.stderr
    assert [path.name for path in folder.iterdir()] == [held]


def test_a_run_is_not_written_over(run: Callable[..., Done], tmp_path: Path) -> None:
    words = ["front", "quadratic", *SMALL, "--preferences", "1", "--out", str(tmp_path / "a")]
    assert run(*words).code == 0
    before = (tmp_path / "a/front.csv").read_bytes()
    again = run(*words)
    assert again.code == 2
    assert "holds a run already; go on with it: bipareto resume" in again.stderr
    assert (tmp_path / "a/front.csv").read_bytes() == before


EXPERIMENTS = {
    "nas": ["experiment", "nas", "search", "--tiny"],
    "fewshot": ["experiment", "fewshot", "comparison", "--tiny"],
}


@pytest.mark.parametrize(
    ("name", "work", "other"), [("nas", "search", "fewshot"), ("fewshot", "train", "nas")]
)
def test_an_experiment_stopped_before_its_results_keeps_its_folder(
    run: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    work: str,
    other: str,
) -> None:
    folder = str(tmp_path / "runs")

    def stopped(*_: Any, **__: Any) -> None:
        raise StoreError("interrupted; the same command goes on")

    monkeypatch.setattr(f"bipareto_experiments.{name}.studies.{work}", stopped)
    for _ in range(2):  # its own command is let in again
        done = run(*EXPERIMENTS[name], "--out", folder)
        assert "interrupted" in done.stderr
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["experiment.json"]
    done = run("front", "quadratic", *SMALL, "--out", folder)
    assert done.code == 2
    assert "already holds an experiment (experiment.json); choose another folder" in done.stderr
    done = run(*EXPERIMENTS[other], "--out", folder)
    assert done.code == 2
    assert (
        f"already holds another experiment ({name}, says experiment.json); choose another folder"
        in done.stderr
    )


def test_a_command_that_cannot_begin_claims_no_folder(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    done = run(
        "experiment",
        "nas",
        "search",
        "--tiny",
        "--supernet",
        "quick",
        "--out",
        str(tmp_path / "runs"),
    )
    assert done.code == 2
    assert "choose plain or fast" in done.stderr
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_narrow_terminal_cuts_no_number_and_no_column(width: int) -> None:
    from rich.console import Console

    header = [
        "run",
        "lower level",
        "||grad_y g||",
        "preference",
        "kkt",
        "descent left",
        "stationarity\nand\nnothing\nelse",
        "gradients",
    ]
    row = [
        "10",
        "not near a minimum",
        "4.123e-09",
        "(0.917, 0.083)",
        "7.6e-04",
        "perhaps",
        "2.7e+00",
        "42",
    ]
    out = Output(as_json=False)
    out.__dict__["console"] = Console(file=io.StringIO(), width=width)
    out.table("certificates", header, [row], left=2)
    shown = out.console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    assert all(cell in shown for cell in ["10", *row[2:]])  # numbers whole, on one line
    assert all(
        word in shown.split() for text in (*header, row[1]) for word in text.split()
    )  # words wrapped, none away
    assert out.console.width == width
    assert (
        max(map(len, shown.splitlines())) < 125
    )  # a header of several lines is as wide as its longest
