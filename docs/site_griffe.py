"""Prepare docstrings for the API page: mark doctests as code, and give each parameter its own type and default."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
PARAMETERS = "Parameters\n----------\n"


class Docstrings(griffe.Extension):
    """Adapts our docstrings to the numpydoc parser."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Mark doctests as code. Doctests after the parameters become a section of examples."""
        if obj.docstring is None:
            return
        text, _, behind = obj.docstring.value.partition(PARAMETERS)
        text = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
        behind = DOCTEST.sub(lambda found: f"Examples\n--------\n{found[0]}", behind, count=1)
        obj.docstring.value = f"{text}{PARAMETERS}{behind}" if behind else text

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Give each parameter of a function its own type and default."""
        _separate_parameters(func)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Give each parameter of a class its own type and default."""
        _separate_parameters(cls)


def _separate_parameters(obj: griffe.Function | griffe.Class) -> None:
    """Give each parameter its own type and default. Describe parameters with one description only once.

    For parameters that are documented together, such as `base, temperature`, the parser repeats the type, the default
    and the description of the first one.
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
