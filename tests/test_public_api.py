"""The public names, their parameters and the options of the command line are those in public_api.txt.

After an intended change, `python -m tests.test_public_api` writes the file again. It needs the extras torch, onnx,
sklearn and dask. CONTRIBUTING.md states which changes are allowed.
"""

import importlib
import inspect
import io
import re
import textwrap
from contextlib import redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from truing.cli.command import run

STORED = Path(__file__).parent / "public_api.txt"
MODULES = ["truing", "truing.torch", "truing.onnx", "truing.sklearn", "truing.parts", "truing.dask"]
COMMANDS = "truing COMMAND"

# The classes that users create. truing creates the others, so their constructors may get more parameters.
CREATED = {"Detector", "DriftAlarm", "OnDask", "OnlineModel", "Outputs", "TruedDetector"}

OPERATORS = {"__add__", "__call__", "__enter__", "__getitem__", "__iter__", "__len__", "__radd__", "__sub__"}

# Members that other modules of truing use. They are not part of the public interface.
INTERNAL = {
    "ArrayTable": {"arrays", "chunk", "name"},
    "ContrastFit": {"predict_scored", "size", "standard", "steepness"},
    "Detector": {"of_state", "of_sums", "settings", "solved", "state"},
    "DriftAlarm": {"of_all", "of_in", "recent", "recent_bins"},
    "Moments": {"gram", "is_dense", "principal_components", "projected", "solve_within", "squares"},
    "OnDask": {"is_remote", "run"},
    "Table": {
        "blocks",
        "called",
        "check_differs_from",
        "files",
        "first_rows",
        "good_rows",
        "identity",
        "only",
        "paths",
        "stamps",
        "stamps_by_path",
    },
}


def call(function, internal: set[str] = frozenset()) -> str:
    """Return the parameters of a function with their defaults. Annotations differ between versions of Python."""
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if parameter.name in internal:
            continue
        if callable(default) and default is not parameter.empty:
            default = Named(default.__name__)
        shown.append(parameter.replace(annotation=parameter.empty, default=default))
    return str(inspect.Signature(shown))


class Named:
    """A default that is shown by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def internal_members(cls: type) -> set[str]:
    return set().union(*(INTERNAL.get(each.__name__, ()) for each in cls.__mro__))


def members_of(cls: type) -> list[str]:
    """Return one line for each public method, property and field of a class. Methods of other packages are left out."""
    lines = []
    names = {field.name for field in fields(cls)} if is_dataclass(cls) else set()
    for name in sorted((names | set(dir(cls))) - internal_members(cls)):
        member = inspect.getattr_static(cls, name, None)
        function = getattr(member, "__func__", member)  # the function of a class method
        if name.startswith("_") and name not in OPERATORS:
            continue
        if name in names or isinstance(member, property):
            lines.append(f".{name}")
        elif inspect.isfunction(function) and function.__module__.startswith("truing."):
            lines.append(f".{name}{call(member.__get__(None, cls))}".replace("(self, ", "(").replace("(self)", "()"))
    return lines


def names_of(module: str) -> list[str]:
    """Return the lines of a module: its public names with their parameters."""
    lines = []
    imported = importlib.import_module(module)
    for name in sorted(imported.__all__):
        value = getattr(imported, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            lines.append(f"{name}({value.__base__.__name__})")
        elif inspect.isclass(value):
            created = call(value, internal_members(value)) if name in CREATED else ""
            lines += [f"{name}{created}", *(f"    {line}" for line in members_of(value))]
        elif callable(value):
            lines.append(f"{name}{call(value)}")
        else:
            lines.append(f"{name}: {' '.join(map(str, value))}")
    return lines


def help_of(command: tuple[str, ...]) -> str:
    """Return what a command prints on --help."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        run([*command, "--help"])
    return printed.getvalue()


def lines_of_command(command: tuple[str, ...] = ()) -> list[str]:
    """Return the usage of a command and of its subcommands."""
    text = help_of(command)
    usage = " ".join(text.partition("\n\n")[0].removeprefix("usage: ").split())
    lines = [re.sub(r"\[-h\] ?", "", usage).strip()]
    for name in re.findall(r"^    ([a-z][\w-]*)(?: |$)", text, re.MULTILINE):
        lines += lines_of_command((*command, name))
    return lines


def wrapped(line: str) -> str:
    """Return a line, broken before 120 characters. The rest is indented."""
    begin = re.match(" *", line)[0]
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(line, 118, subsequent_indent=begin + 8 * " ", **options)


def section(title: str) -> str:
    """Return the section of the stored file on a module, or on the commands."""
    lines = lines_of_command() if title == COMMANDS else names_of(title)
    return f"# {title}\n\n" + "".join(f"{wrapped(line)}\n" for line in lines)


def stored_sections() -> dict[str, str]:
    parts = re.split(r"^# (.*)\n", STORED.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {title: f"# {title}\n{text.rstrip()}\n" for title, text in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("title", [*MODULES, COMMANDS])
def test_the_public_names_and_their_parameters_are_those_stored(title):
    try:
        current = section(title)
    except ImportError as error:
        pytest.skip(str(error))
    assert current == stored_sections()[title]


def main() -> None:
    """Write the stored file again."""
    STORED.write_text("\n".join(section(title) for title in [*MODULES, COMMANDS]), encoding="utf-8")


if __name__ == "__main__":
    main()
