"""The category of all warnings that truing issues."""


class TruingWarning(UserWarning):
    """Something the user should know about the data or the result."""
