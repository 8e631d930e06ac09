"""Records sent to TensorBoard, MLflow or Weights & Biases while a run goes: callbacks for `solve`,
`front` and sweeps.

One of your own is a `Tracker` with `send` and `close`.

The run folder's own metrics stay the record that a resume rests on; a tracker is a window on it,
and nothing reads it back. The packages are extras and are imported when a tracker is made.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from torch import Tensor

from bipareto.errors import InvalidInput, installed
from bipareto.run.results import Record

__all__ = [
    "MLflow",
    "TensorBoard",
    "Tracker",
    "TrackerName",
    "WandB",
    "open_tracker",
    "prepare_tracker",
]

TrackerName = Literal["tensorboard", "mlflow", "wandb"]

#: values that MLflow takes at once
BATCH = 1000


class Tracker(ABC):
    """A callback that sends the scalars of every record somewhere; a context manager that closes
    what it opened.

    Args:
        runs: names of the runs on the run axis, the first rows of it; None where there is one run
            and no such axis.
    """

    def __init__(self, runs: Sequence[str] | None = None) -> None:
        self.runs = runs

    def __call__(self, record: Record) -> None:
        self.send(dict(_scalars(record.info, self.runs)), record.step)

    @abstractmethod
    def send(self, values: Mapping[str, float], step: int) -> None:
        """Names -> values after that many steps."""

    @abstractmethod
    def close(self) -> None:
        """Everything was sent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _scalars(info: Mapping[str, Tensor], runs: Sequence[str] | None) -> Iterator[tuple[str, float]]:
    """("f1", 0.3), ("gap", 1e-3), ... of one run, or ("f1/run name", 0.3), ... of several; vectors
    are numbered from 1.
    """
    for name, values in info.items():
        rows = [values.tolist()] if runs is None else values[: len(runs)].tolist()
        for label, row in zip(
            [""] if runs is None else [f"/{run}" for run in runs], rows, strict=True
        ):
            if isinstance(row, list):
                yield from (
                    (f"{'f' if name == 'objectives' else name}{i}{label}", value)
                    for i, value in enumerate(row, 1)
                )
            else:
                yield f"{name}{label}", row


class TensorBoard(Tracker):
    """Scalars as TensorBoard event files.

    Args:
        folder: for the event files; look at them with `tensorboard --logdir FOLDER`.
        runs: as in `Tracker`.
        begin: steps done when a run goes on; what an interrupted process sent beyond them is
            hidden.
    """

    def __init__(
        self, folder: str | PathLike[str], *, runs: Sequence[str] | None = None, begin: int = 0
    ) -> None:
        super().__init__(runs)
        _require("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=begin + 1 if begin else None)

    def send(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class MLflow(Tracker):
    """Scalars as metrics of an MLflow run; values that are not finite are left out.

    Args:
        uri: a tracking server or database, e.g. sqlite:///mlflow.db; None is MLflow's own choice
            (MLFLOW_TRACKING_URI).
        experiment, run: names; a run of that name in that experiment is continued.
        runs: as in `Tracker`.
        parameters: written to a new run.
    """

    def __init__(
        self,
        uri: str | None = None,
        *,
        experiment: str = "bipareto",
        run: str = "run",
        runs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(runs)
        self._entities = _require("mlflow.entities")
        self._client, place = _experiment(uri, experiment)
        known = self._client.search_runs([place], f"attributes.run_name = '{run}'")
        self._run: str = (
            known[0] if known else self._client.create_run(place, run_name=run)
        ).info.run_id
        if not known and parameters:
            self._client.log_batch(
                self._run,
                params=[
                    self._entities.Param(name, str(value)) for name, value in parameters.items()
                ],
            )

    def send(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(name, value, now, step)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        for first in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[first : first + BATCH])

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandB(Tracker):
    """Scalars of a Weights & Biases run; values that are not finite are left out.

    Args:
        project, run: names; a run of that name in that folder is continued.
        folder: where its files go; WANDB_MODE=offline keeps them there.
        runs: as in `Tracker`.
        parameters: the configuration of a new run.
    """

    def __init__(
        self,
        project: str = "bipareto",
        *,
        run: str = "run",
        folder: str | PathLike[str] | None = None,
        runs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(runs)
        where = "" if folder is None else str(Path(folder).resolve())
        self._run: Any = _require("wandb").init(
            project=project,
            name=run,
            # The same run of the same folder has the same id, so that a resume goes on with it.
            id=sha256(f"{where}:{project}:{run}".encode()).hexdigest()[:16],
            resume="allow",
            dir=where or None,
            config=dict(parameters or {}),
        )

    def send(self, values: Mapping[str, float], step: int) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._run.log(finite, step=step)

    def close(self) -> None:
        self._run.finish()


def open_tracker(
    name: TrackerName,
    folder: Path,
    *,
    run: str = "run",
    runs: Sequence[str] | None = None,
    begin: int = 0,
    parameters: Mapping[str, Any] | None = None,
) -> Tracker:
    """The tracker of a folder: FOLDER/tensorboard/RUN; MLflow's MLFLOW_TRACKING_URI and else
    FOLDER/mlflow.db; or Weights & Biases, its files in FOLDER/wandb.

    Args:
        name: "tensorboard", "mlflow" or "wandb".
        folder: where results go; it names the MLflow experiment and the W&B project.
        run, runs, begin, parameters: as in the trackers.
    """
    if name == "tensorboard":
        return TensorBoard(folder / "tensorboard" / run, runs=runs, begin=begin)
    if name == "mlflow":
        return MLflow(
            _uri(folder),
            experiment=str(folder.resolve()),
            run=run,
            runs=runs,
            parameters=parameters,
        )
    if name == "wandb":
        return WandB(folder.name, run=run, folder=folder, runs=runs, parameters=parameters)
    raise InvalidInput(f"the tracker is {name!r}; choose tensorboard, mlflow or wandb")


def prepare_tracker(name: TrackerName, folder: Path) -> None:
    """Before several processes open trackers of one folder: refuse a package that is missing, and
    make MLflow's database.
    """
    if name == "mlflow":
        _experiment(_uri(folder), str(folder.resolve()))
    else:
        _require(name)


def _uri(folder: Path) -> str | None:
    return (
        None
        if "MLFLOW_TRACKING_URI" in os.environ
        else f"sqlite:///{folder.resolve() / 'mlflow.db'}"
    )


def _experiment(uri: str | None, name: str) -> tuple[Any, str]:
    """A client, and the id of the experiment of that name, made if need be."""
    client = _require("mlflow").MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(name)
    return client, client.create_experiment(name) if found is None else found.experiment_id


def _require(module: str) -> Any:
    package = module.partition(".")[0]
    return installed(
        module,
        f"tracking needs {package}, which is not installed; get it with: pip install "
        f"'bipareto[{package}]'",
    )
