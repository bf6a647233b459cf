"""SciPy's linear algebra, loaded when it is first needed: that takes longer than to load all the rest."""

from typing import Any


def __getattr__(name: str) -> Any:
    import scipy.linalg

    globals()[name] = found = getattr(scipy.linalg, name)
    return found
