"""Docstrings as the API page needs them: doctests set as code, and for each parameter its own type and default."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
PARAMETERS = "Parameters\n----------\n"


class Docstrings(griffe.Extension):
    """Mends what the parser of numpydoc leaves of ours."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Set doctests as code: behind the parameters in a section of examples, else where they stand."""
        if obj.docstring is None:
            return
        text, _, behind = obj.docstring.value.partition(PARAMETERS)
        text = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
        behind = DOCTEST.sub(lambda found: f"Examples\n--------\n{found[0]}", behind, count=1)
        obj.docstring.value = f"{text}{PARAMETERS}{behind}" if behind else text

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Mend the parameters of a function."""
        _mend_parameters(func)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Mend the parameters of a class."""
        _mend_parameters(cls)


def _mend_parameters(obj: griffe.Function | griffe.Class) -> None:
    """Give names that are described together each its own type and default; what is said of all is said of the first.

    Of a parser they all have the first one's type and default, and each the whole description.
    """
    for section in obj.docstring.parsed if obj.docstring is not None else ():
        if isinstance(section, griffe.DocstringSectionParameters):
            first: dict[str, str] = {}
            for parameter in section.value:
                own = obj.parameters[parameter.name]
                parameter.annotation, parameter.value = own.annotation, own.default
                name = first.setdefault(parameter.description, parameter.name)
                if name != parameter.name:
                    parameter.description = f"See `{name}`."
