"""How to install the optional dependencies."""


def install(extra: str) -> str:
    """Return the command that installs truing with an extra.

    >>> install("torch")
    "pip install 'truing[torch]', or '.[torch]' from a clone"
    """
    return f"pip install 'truing[{extra}]', or '.[{extra}]' from a clone"
