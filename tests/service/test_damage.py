"""A damaged database is recovered to a state that it had, or refused. It is never silently different."""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from truing.service.store import Store

from .damage import (
    DAMAGES,
    FRAME,
    INDEX,
    LAYOUTS,
    LOG,
    LOG_HEADER,
    MAIN,
    Database,
    Files,
    build,
    fingerprint,
    with_old_page,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, if the system has one, because writing thousands of files to a disk would take long."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def outcome(folder: Path, database: Database, files: Files) -> str:
    """Load damaged files. Return refused, newest or earlier; fail if the state is not in the history."""
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    try:
        with closing(Store(folder / MAIN)) as store:
            contents = store.load()
            ids = {name for name in database.all_ids if store.find(name) is not None}
    except (ValueError, OSError) as error:
        return "refused" if MAIN in str(error) else f"refused without a name: {error}"
    assert fingerprint(contents) == database.states[contents.sequence]
    assert ids == database.ids[contents.sequence]
    return "newest" if contents.sequence == database.newest else "earlier"


def try_damages(parent: Path, kind: str, rounds: int) -> None:
    """Damage a database in every layout and every way. A failure names the round, the layout and the damage."""
    results: Counter[str] = Counter()
    for layout in LAYOUTS:
        folder = parent / layout
        folder.mkdir()
        database = build(folder, kind, layout)
        assert outcome(folder, database, database.files) == "newest"
        for count in range(rounds):
            for damage, (name, damaged) in DAMAGES.items():
                if name not in database.files:
                    continue
                case = f"{kind}, {layout}, {damage}, {count}"
                files = database.files | {name: damaged(database.files[name], random.Random(case))}
                result = outcome(folder, database, files)
                assert name == LOG or result != "earlier", case
                assert name != INDEX or result == "newest", case  # SQLite makes a new index.
                results[result] += 1
            if LOG in database.files:
                files = with_old_page(database.files, random.Random(f"{kind}, {layout}, {count}"))
                results[outcome(folder, database, files)] += 1
        if LOG in database.files:
            results[outcome(folder, database, {MAIN: database.files[MAIN]})] += 1
    assert set(results) == {"newest", "earlier", "refused"}
    assert results.total() >= 60 * rounds


@pytest.mark.parametrize("kind", ["rlr", "contrast"])
def test_a_damaged_database_has_an_earlier_state_or_is_rejected(folder, kind):
    try_damages(folder, kind, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dlr", "window", "contrast"])
def test_none_of_a_thousand_damages_goes_unnoticed(folder, kind):
    try_damages(folder, kind, 6)


def test_a_log_cut_after_any_frame_never_mixes_the_pages_of_two_commits(folder):
    results = set()
    for batches in range(6, 10):  # The first commits after a checkpoint start a new page of the table, or do not.
        one = folder / str(batches)
        one.mkdir()
        database = build(one, "dlr", "checkpointed twice", batches=batches)
        log = database.files[LOG]
        for frames in range(30):  # The five commits after the first checkpoint.
            cut = {MAIN: database.files[MAIN], LOG: log[: LOG_HEADER + FRAME * frames]}
            results.add(outcome(one, database, cut))
    assert results == {"newest", "earlier", "refused"}
