"""SciPy's linear algebra, imported on first use because the import takes longer than the rest of truing."""

from typing import Any


def __getattr__(name: str) -> Any:
    import scipy.linalg

    globals()[name] = value = getattr(scipy.linalg, name)
    return value
