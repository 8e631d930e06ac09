"""Multi-domain few-shot learning as a bilevel problem: backbone x, one learner y_i per domain.

f_i(x, y) = cross entropy of domain i's query images,
g(x, y) = (1/m) sum_i cross entropy of domain i's support images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bipareto.problem import Problem, oracle, tree
from bipareto.problem.tree import Tree
from bipareto_experiments.fewshot.episodes import Episodes
from bipareto_experiments.fewshot.network import Network


class FewShot(Problem):
    """The problem on a data set that lies on the device.

    Args:
        network: where x ends and y begins.
        images: (N, 3, H, W) uint8.
        episodes: draws of rows of `images`.
        names: of the domains.
    """

    def __init__(
        self, network: Network, images: Tensor, episodes: Episodes, names: Sequence[str]
    ) -> None:
        super().__init__(self._losses, self._mean, sampler=episodes, names=names)
        self.parts = tuple(range(len(names)))
        self.network, self.images, self.episodes = network, images, episodes
        sample = images[:: max(1, len(images) // 4096)].float() / 255
        spread, mean = torch.std_mean(sample, (0, 2, 3), keepdim=True)
        self._scale, self._shift = 1 / (255 * spread), mean / spread

    def pixels(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The images of a draw, (tasks, n, 3, H, W), each channel with mean 0 and variance 1 over
        the data set.
        """
        rows, flip = batch
        chosen = self.images[rows]
        chosen = torch.where(flip[..., None, None, None], chosen.flip(-1), chosen)
        return chosen * self._scale - self._shift

    def features(self, x: Tree, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The backbone's view of a draw."""
        return self.network.features(x, self.pixels(batch))

    def _losses(self, x: Tree, y: Tree, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.network.losses(y, self.features(x, batch))

    def _mean(self, x: Tree, y: Tree, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self._losses(x, y, batch).mean()

    def objective(self, i: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """f_i from domain i's images and learner alone."""
        return self._losses(
            x, tree.map_(lambda leaf: leaf[i : i + 1], y), tuple(part[i : i + 1] for part in batch)
        )[0]

    def lower_part(self, part: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """That domain's term of g."""
        return self.objective(part, x, y, batch) / len(batch[0])

    def lower_pair(self, x: Tree, y: Tree, theta: Tree, batch: Any = None) -> tuple[Tensor, Tensor]:
        """Both on the same features, which the backbone makes once."""
        features = self.features(x, batch)
        return self.network.losses(y, features).mean(), self.network.losses(theta, features).mean()

    def adapted(self, features: Tensor, y0: Tree, steps: int, eta: float) -> Tree:
        """Learners after `steps` of size eta on g from y_0, for any number of tasks (each steps as
        it would among m domains).
        """
        m = len(self.names or ())
        y = tree.map_(lambda leaf: leaf[:1].expand(len(features), *leaf.shape[1:]), y0)
        for _ in range(steps):
            y = tree.add_scaled(
                y, -eta, oracle.grad(lambda v: self.network.losses(v, features).sum() / m, y)
            )
        return y
