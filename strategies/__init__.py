"""Federated-learning methods: pure mathematics, and thin Flower glue around it.

The strategies can be used in any ServerApp and ClientApp, without the application and its
configuration: ``from strategies import DpFedPaq``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategies.dp_fedpaq import DpFedPaq as DpFedPaq
    from strategies.dp_fts_de import DpFtsDe as DpFtsDe
    from strategies.niss import Niss as Niss

_STRATEGIES = {
    "DpFedPaq": "strategies.dp_fedpaq",
    "DpFtsDe": "strategies.dp_fts_de",
    "Niss": "strategies.niss",
}

__all__ = ["DpFedPaq", "DpFtsDe", "Niss"]


def __getattr__(name: str) -> object:
    """Import a strategy when it is asked for: the mathematics alone needs no Flower."""
    if name not in _STRATEGIES:
        raise AttributeError(f"module 'strategies' has no attribute {name!r}")
    return getattr(import_module(_STRATEGIES[name]), name)
