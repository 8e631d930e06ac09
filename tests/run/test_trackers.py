"""Records as TensorBoard, MLflow and Weights & Biases get them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import bipareto as bp
from bipareto.cli import main
from bipareto.errors import InvalidInput
from bipareto.run.results import Record
from bipareto.run.trackers import MLflow, TensorBoard, WandB, open_tracker
from bipareto.sweep import sweep
from bipareto.sweep.config import SweepConfig
from bipareto.sweep.store import RunFolder
from bipareto.sweep.typed import parse

CONFIG = parse(
    SweepConfig,
    {
        "problem": {"name": "quadratic", "options": {"dim": 2}},
        "method": {"hyperparameters": "plain"},
        "preferences": {"count": 3},
        "steps": 12,
        "record_every": 4,
        "slice": 2,
        "compile": False,
        "checkpoint": {"seconds": 0},
    },
)


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) as TensorBoard shows them."""
    pytest.importorskip("tensorboard", reason="tracking with TensorBoard needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder))
    seen.Reload()
    return {
        tag: [(event.step, event.value) for event in seen.Scalars(tag)]
        for tag in seen.Tags()["scalars"]
    }


def test_tensorboard_shows_the_history_of_a_solve(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tracking with TensorBoard needs tensorboard")
    problem = bp.problems.get("quadratic", dim=2)
    with TensorBoard(tmp_path) as tracker:
        found = bp.solve(
            problem,
            problem.x0,
            problem.y0,
            method=bp.MOMEHA(),
            steps=8,
            record_every=4,
            compile=False,
            callbacks=[tracker],
        )
    shown = events(tmp_path)
    assert {"f1", "f2", "gap", "residual", "lower"} <= shown.keys()
    for i in (0, 1):
        assert [step for step, _ in shown[f"f{i + 1}"]] == found.history["step"].tolist()
        assert [value for _, value in shown[f"f{i + 1}"]] == pytest.approx(
            found.history["objectives"][:, i].tolist(), rel=1e-6
        )


def test_a_tracked_sweep_has_the_same_front_and_names_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="tracking with TensorBoard needs tensorboard")
    sweep.sweep(CONFIG, tmp_path / "plain")
    stop = RuntimeError("the machine stops here")

    def dying(self: Any, values: Any, step: int, send: Any = TensorBoard.send) -> None:
        send(self, values, step)
        if step == 8:
            raise stop

    with monkeypatch.context() as patch:
        patch.setattr(TensorBoard, "send", dying)
        with pytest.raises(RuntimeError, match="stops here"):
            sweep.sweep(replace(CONFIG, track="tensorboard"), tmp_path / "run")
    sweep.resume(tmp_path / "run")
    assert (tmp_path / "run/front.csv").read_bytes() == (tmp_path / "plain/front.csv").read_bytes()
    first, second = (events(tmp_path / f"run/tensorboard/slice 0000{i}") for i in (0, 1))
    assert [step for step, _ in first["f1/run 0"]] == [4, 8, 12]
    assert {tag for tag in first if tag.startswith("f1")} == {"f1/run 0", "f1/run 1"}
    assert {tag for tag in second if tag.startswith("f1")} == {
        "f1/run 2"
    }  # the run that pads the slice is not shown


@dataclass
class Server:
    """A stand-in for MLflow that remembers what it was sent."""

    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, SimpleNamespace] = field(default_factory=dict)
    uris: list[str | None] = field(default_factory=list)

    def client(self, tracking_uri: str | None = None) -> SimpleNamespace:
        self.uris.append(tracking_uri)
        return SimpleNamespace(
            get_experiment_by_name=lambda name: (
                SimpleNamespace(experiment_id=self.experiments[name])
                if name in self.experiments
                else None
            ),
            create_experiment=lambda name: self.experiments.setdefault(
                name, str(len(self.experiments))
            ),
            search_runs=lambda places, query: [
                run for run in self.runs.values() if query == f"attributes.run_name = '{run.name}'"
            ],
            create_run=self.create_run,
            log_batch=self.log_batch,
            set_terminated=lambda run_id: setattr(
                self.runs[run_id], "ended", self.runs[run_id].ended + 1
            ),
        )

    def create_run(self, place: str, run_name: str) -> SimpleNamespace:
        run = SimpleNamespace(
            info=SimpleNamespace(run_id=f"id-{run_name}"),
            name=run_name,
            metrics=[],
            params={},
            ended=0,
        )
        return self.runs.setdefault(run.info.run_id, run)

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        self.runs[run_id].metrics += metrics
        self.runs[run_id].params |= dict(params)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found, module, entities = Server(), ModuleType("mlflow"), ModuleType("mlflow.entities")
    module.MlflowClient = found.client  # type: ignore[attr-defined]
    entities.Metric = lambda name, value, now, step: (name, value, step)  # type: ignore[attr-defined]
    entities.Param = lambda name, value: (name, value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return found


def test_mlflow_gets_every_slice_as_a_run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.sweep(replace(CONFIG, track="mlflow"), tmp_path / "run")
    assert list(server.experiments) == [str(tmp_path / "run")]
    assert set(server.uris) == {f"sqlite:///{tmp_path}/run/mlflow.db"}
    assert sorted(run.name for run in server.runs.values()) == ["slice 00000", "slice 00001"]
    first = server.runs["id-slice 00000"]
    assert [step for name, _, step in first.metrics if name == "f1/run 1"] == [4, 8, 12]
    assert first.params["mu"] == "4.0"
    assert first.ended == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    main_words = [
        "solve",
        "quadratic",
        "--dim",
        "2",
        "--steps",
        "2",
        "--no-compile",
        "-q",
        "--out",
        str(tmp_path / "one"),
        "--track",
        "mlflow",
    ]
    with pytest.raises(SystemExit) as left:
        main(main_words)
    assert left.value.code == 0
    assert server.uris[-1] is None
    newest = server.runs["id-slice 00000"]
    assert {"f1/run 0", "f2/run 0", "gap/run 0"} <= {name for name, *_ in newest.metrics}


def test_mlflow_continues_a_run_and_leaves_out_what_is_not_finite(server: Server) -> None:
    info = {"objectives": torch.tensor([1.0, torch.inf]), "residual": torch.tensor(0.5)}
    for step in (1, 2):
        with MLflow("sqlite:///x.db", run="a", parameters={"mu": 4}) as tracker:
            tracker(Record(step, None, info))
    (run,) = server.runs.values()
    assert run.metrics == [
        ("f1", 1.0, 1),
        ("residual", 0.5, 1),
        ("f1", 1.0, 2),
        ("residual", 0.5, 2),
    ]
    with MLflow(run="many", runs=[f"run {i}" for i in range(1500)]) as tracker:
        tracker(Record(1, None, {"residual": torch.ones(1500)}))
    assert len(server.runs["id-many"].metrics) == 1500


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_real_mlflow_database(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="tracking with MLflow needs mlflow")
    problem, uri = bp.problems.get("quadratic", dim=2), f"sqlite:///{tmp_path}/mlflow.db"
    with MLflow(uri, experiment="e", run="a") as tracker:
        found = bp.solve(
            problem,
            problem.x0,
            problem.y0,
            method=bp.MOMEHA(),
            steps=8,
            record_every=4,
            compile=False,
            callbacks=[tracker],
        )
    with MLflow(uri, experiment="e", run="a") as tracker:
        tracker(Record(12, None, {"objectives": torch.zeros(2)}))
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    seen = [(item.step, item.value) for item in client.get_metric_history(run.info.run_id, "f1")]
    assert seen == [
        (4, float(found.history["objectives"][0, 0])),
        (8, float(found.history["objectives"][1, 0])),
        (12, 0.0),
    ]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_package_is_named_before_anything_runs(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (name, f"{name}.entities"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        InvalidInput, match=rf"tracking needs {name}.*pip install 'bipareto\[{name}\]'"
    ):
        sweep.sweep(replace(CONFIG, track=name), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--track", "tensorboard"], "add --out DIR"),
        (["--track", "paper", "--out", "{}"], "choose tensorboard, mlflow or wandb"),
    ],
)
def test_wrong_words_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["solve", "quadratic", "--steps", "2", *(word.format(tmp_path) for word in words)])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_wandb_gets_every_finite_value_and_a_resume_goes_on_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []
    logged: list[tuple[int, dict[str, float]]] = []
    run = SimpleNamespace(
        log=lambda values, step: logged.append((step, values)),
        finish=lambda: logged.append((-1, {})),
    )

    def init(**options: Any) -> Any:
        opened.append(options)
        return run

    module = ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    for _ in range(2):
        with open_tracker("wandb", tmp_path, run="00000", parameters={"mu": 4}) as tracker:
            assert isinstance(tracker, WandB)
            info = {"objectives": torch.tensor([1.0, 2.0]), "gap": torch.tensor(torch.nan)}
            tracker(Record(5, None, info))  # type: ignore[arg-type]
    assert logged == [(5, {"f1": 1.0, "f2": 2.0}), (-1, {})] * 2
    assert opened[0] == opened[1]
    assert opened[0]["resume"] == "allow"
    assert opened[0]["config"] == {"mu": 4}


def test_wandb_itself_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="tracking with Weights & Biases needs wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with WandB("project", folder=tmp_path) as tracker:
        tracker(Record(1, None, {"objectives": torch.ones(2)}))  # type: ignore[arg-type]
    assert list(tmp_path.rglob("*.wandb"))
