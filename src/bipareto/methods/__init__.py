"""The methods, one file each; `METHODS` maps their command-line names to their classes."""

from __future__ import annotations

from bipareto.methods.base import Method
from bipareto.methods.forum import FORUM
from bipareto.methods.gmoba import GMOBA
from bipareto.methods.mbmomeha import MBMOMEHA
from bipareto.methods.meha import MEHA
from bipareto.methods.moco import MoCo
from bipareto.methods.momeha import MOMEHA
from bipareto.methods.moml import MOML
from bipareto.methods.twin import Twin
from bipareto.methods.wcmhgd import WCMHGD
from bipareto.methods.wcpenalty import WCPenalty
from bipareto.problem.plugins import Registry

__all__ = [
    "FORUM",
    "GMOBA",
    "MBMOMEHA",
    "MEHA",
    "METHODS",
    "MOMEHA",
    "MOML",
    "WCMHGD",
    "Method",
    "MoCo",
    "Twin",
    "WCPenalty",
]

METHODS: Registry[type[Method]] = Registry(
    "methods",
    {
        "momeha": MOMEHA,
        "mb-momeha": MBMOMEHA,
        "meha": MEHA,
        "moml": MOML,
        "gmoba": GMOBA,
        "forum": FORUM,
        "moco": MoCo,
        "wc-mhgd": WCMHGD,
        "wc-penalty": WCPenalty,
        "twin": Twin,
    },
)
