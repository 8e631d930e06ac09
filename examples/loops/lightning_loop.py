"""`bp.Optimizer` inside a Lightning module: Lightning has the loop, the logs and the checkpoints.

python examples/loops/lightning_loop.py        needs lightning: pip install lightning
"""

from __future__ import annotations

import lightning as L
import torch

import bipareto as bp
from problem import loaders, method, problem_of


class Weighted(L.LightningModule):
    """Two preferences side by side; Lightning hands over the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False  # the step below is the whole update
        self.net = torch.nn.Linear(64, 10)
        problem, x0, y0 = problem_of(self.net)
        self.runs = bp.Optimizer(problem, x0, y0, method(), preferences=[[0.8, 0.2], [0.2, 0.8]])

    def training_step(self, batch, index):
        new = [batch["upright"], batch["turned"]]
        seen = self.runs.step({"lower": batch["train"], "upper": new})
        self.log("f1 of run 0", seen["objectives"][0, 0])

    def configure_optimizers(self):
        return None

    def on_save_checkpoint(self, checkpoint):
        checkpoint["bipareto"] = self.runs.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.runs.load_state_dict(checkpoint["bipareto"])


if __name__ == "__main__":
    module = Weighted()
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, L.pytorch.utilities.CombinedLoader(loaders(), "max_size_cycle"))
    print(f"{module.runs.steps} steps")
    print("weights of upright and turned images, one row per preference:")
    print(module.runs.state.x.softmax(1))
