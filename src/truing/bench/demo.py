"""The demo: a few experiments on the sample data that comes with truing, with one repeat each."""

from pathlib import Path

from ..report import figures
from ..report.writing import check_page, write_text
from ..sample import DATA, INSIDE, OUTSIDE
from .code import commit
from .experiments.cases import CONVENTIONS, DEMO, SEED, Case
from .experiments.provenance import describe_file
from .experiments.records import About, Results, Row, about
from .experiments.run import choices, run_task
from .experiments.settings import Setting
from .experiments.tasks import tasks
from .progress import show_progress
from .report import demo_front, page, terminal
from .report.tables import with_methods_of

SETTING = Setting(
    "cifar10-resnet56-sample",
    "",
    "ResNet-56 trained on CIFAR-10, 64 features; outputs that come with truing",
    INSIDE,
    {name: name for name in OUTSIDE},
    noise_sets=(),
)


def run(path: Path | None = None, folder: Path = DATA) -> None:
    """Print the demo's tables, then write the report to `path` if a path is given.

    The report is written atomically. Without a report, the demo needs no plotting library.
    """
    if path is not None:
        figures.figure_class()  # Report a missing package before the work, not after it.
        check_page(path)
    measured = measure([case for case in DEMO if case.tables], folder)
    show_progress("")
    print(terminal.text(measured.rows), flush=True)
    if path is not None:
        drawn = measure([case for case in DEMO if not case.tables], folder)
        show_progress("drawing the figures")
        write_text(path, report(Results(measured.rows + drawn.rows, measured.abouts + drawn.abouts, measured.settings)))
        show_progress("")
        print(f"\nReport: {path}")


def measure(cases: list[Case], folder: Path = DATA) -> Results:
    """Return the results of cases on the sample data in a folder, with one repeat."""
    rows: list[Row] = []
    abouts: list[About] = []
    for case in cases:
        names = {"case": case.name, "setting": SETTING.name, "conventions": CONVENTIONS[0]}
        wanted = tasks(case, SETTING, lambda name: folder / f"{name}.npz", CONVENTIONS[0], seeds=(SEED,))
        for number, task in enumerate(wanted, 1):
            show_progress(f"{case.title}: {number} of {len(wanted)}, {task.name}")
            rows += [{**names, **row} for row in run_task(task)[1]]
        data = {name: describe_file(path) for task in wanted for name, path in task.paths.items() if path is not None}
        chosen = choices(case, SETTING, CONVENTIONS[0]) | {"repeats": 1}
        abouts.append(about(chosen, SETTING, data, commit()))
    return Results(rows, abouts, {SETTING.name: SETTING})


def report(results: Results) -> str:
    """Return the HTML page of the demo: a first page, then the pages of the experiments."""
    beside_main = tuple(case.name for case in DEMO if case.tables and not case.has_reference)
    return page.render(with_methods_of(results, beside_main), demo_front.front(results.rows))
