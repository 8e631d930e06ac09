"""Classes clustered into domains of a least size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto_experiments.data import ImageSet

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Classes that show the images of another class again: Faces_easy are the faces of Faces, cut out.
#: Of the two only one may take
#: part, or a face trained on would be tested on.
REPEATED = {"caltech101": ("Faces_easy",)}
#: starts of the clustering
STARTS = 30


def cluster(
    images: ImageSet, features: Tensor, seed: int, *, count: int = 4, least: int = 20
) -> dict[str, tuple[int, ...]]:
    """k-means of class means in which every cluster keeps at least `least` classes (Bradley,
    Bennett and Demiriz, 2000).

    Started at scikit-learn's k-means; then, in turn, classes are assigned to centres at the least
    total squared distance that fills every cluster, and centres move to their classes' mean, until
    nothing changes.  The best of `STARTS` starts counts.

    Returns:
        the classes of each cluster; its name is that of the three classes nearest to its centre.
    """
    import numpy as np

    kept = [
        c for c, name in enumerate(images.class_names) if name not in REPEATED.get(images.name, ())
    ]
    if len(features) != len(images.class_names):
        raise InvalidInput(
            f"{len(features)} features for the {len(images.class_names)} classes of {images.name}; "
            "need one row per class"
        )
    if len(kept) < count * least:
        raise InvalidInput(
            f"{images.name} has {len(kept)} classes; {count} domains of at least {least} need "
            f"{count * least}: use fewer domains or fewer ways"
        )
    points = features[kept].double().numpy()
    found = [
        _constrained_kmeans(points, count, least, STARTS * seed + start) for start in range(STARTS)
    ]
    _, assigned, distances = min(found, key=lambda one: one[0])
    clusters = {}
    for k in sorted(range(count), key=lambda k: int(np.argmax(assigned == k))):
        members = np.flatnonzero(assigned == k)
        central = members[np.argsort(distances[members, k])][:3]
        clusters[", ".join(images.class_names[kept[int(c)]] for c in central)] = tuple(
            kept[int(c)] for c in members
        )
    return clusters


def _constrained_kmeans(
    points: NDArray[Any], count: int, least: int, seed: int
) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Total squared distance, cluster of each point (n,), squared distances to the centres (n,
    count).
    """
    import numpy as np
    from sklearn.cluster import KMeans

    centres = KMeans(count, n_init=1, random_state=seed).fit(points).cluster_centers_
    assigned = np.full(len(points), -1)
    while True:
        distances = ((points[:, None] - centres[None]) ** 2).sum(-1)
        previous, assigned = assigned, _assign(distances, least)
        if np.array_equal(previous, assigned):
            return float(distances[np.arange(len(points)), assigned].sum()), assigned, distances
        centres = np.stack([points[assigned == k].mean(0) for k in range(count)])


def _assign(distances: NDArray[Any], least: int) -> NDArray[Any]:
    """Rows to columns of `distances` (n, k) at least total cost, every column getting at least
    `least` rows; shape (n,).

    One assignment problem: `least` seats belong to each column, and whoever finds none of them
    takes its nearest column.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    n, k = distances.shape
    seats = np.concatenate(
        [
            np.repeat(distances, least, axis=1),
            np.repeat(distances.min(1, keepdims=True), n - k * least, axis=1),
        ],
        axis=1,
    )
    _, seat = linear_sum_assignment(seats)
    return np.where(seat < k * least, seat // max(least, 1), distances.argmin(1))
