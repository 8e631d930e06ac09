"""Image sets: found in the data folder in whichever public or packed layout is there, and read into
memory.
"""

from __future__ import annotations

from bipareto_experiments.data.catalogue import KNOWN, VARIABLE, data_folder, load
from bipareto_experiments.data.fc100 import FC100, fc100_classes
from bipareto_experiments.data.images import DataError, ImageSet, MissingData, WrongSize

__all__ = [
    "FC100",
    "KNOWN",
    "VARIABLE",
    "DataError",
    "ImageSet",
    "MissingData",
    "WrongSize",
    "data_folder",
    "fc100_classes",
    "load",
]
