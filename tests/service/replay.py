"""The history of a database, read with plain SQL, and replayed without the code of the store."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

import truing
from truing.decisions.thresholds import Rate
from truing.service.store import Store
from truing.stream import Answer, SolvedState, calibrated, learn_batches

from .batches import DETECTORS, FEW_REFERENCE_ROWS, batch, bits

RATE = Rate("false_alarm", 0.05)


class History:
    """The committed changes of one database. Call `read` before every snapshot: a snapshot deletes old changes."""

    def __init__(self) -> None:
        self.changes: dict[int, tuple[int, str]] = {}
        self.ids: dict[int, str] = {}

    def read(self, path: Path) -> None:
        """Read the changes and request ids of a database that may be in use. Check that earlier ones are the same."""
        with closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=30)
        ) as database:
            database.execute("BEGIN")
            changes = database.execute("SELECT sequence, step, kind FROM changes").fetchall()
            ids = database.execute("SELECT sequence, request_id FROM request_ids ORDER BY sequence").fetchall()
        for sequence, *change in changes:
            assert self.changes.setdefault(sequence, tuple(change)) == tuple(change), sequence
        for sequence, request_id in ids:
            assert self.ids.setdefault(sequence, request_id) == request_id, sequence

    def check(self, path: Path, kind: str) -> dict[str, Answer]:
        """Check that a database holds a state of this history, bit for bit, and the request ids of its batches.

        Return the answers to these batches by name.
        """
        with closing(Store(path)) as store:
            contents = store.load()
            ids = {name for name in self.ids.values() if store.find(name) is not None}
        names = {sequence: name for sequence, name in self.ids.items() if sequence <= contents.sequence}
        assert len(set(names.values())) == len(names)  # No batch was learned twice.
        assert ids == set(names.values())
        counts = contents.sequence, contents.batches, contents.rows_learned
        assert counts == (len(names) + 1, len(names), 6 * len(names))  # The first change is the reference.
        detector, answers = self._replayed(DETECTORS[kind], contents.sequence)
        assert bits(contents.detector) == bits(detector)
        return answers

    def _replayed(self, options: Mapping[str, Any], last: int) -> tuple[truing.Detector, dict[str, Answer]]:
        """Return the detector after the `last` change, and the answer to every batch."""
        assert sorted(self.changes) == list(range(1, len(self.changes) + 1))
        solved = SolvedState(truing.Detector(**options).state)
        answers: dict[str, Answer] = {}
        for _, group in groupby(range(1, last + 1), key=lambda sequence: self.changes[sequence][0]):
            sequences = list(group)
            kinds = {self.changes[sequence][1] for sequence in sequences}
            if kinds == {"calibrate"}:
                solved = SolvedState(calibrated(solved.state, batch("reference", FEW_REFERENCE_ROWS)))
                continue
            assert kinds == {"learn"}
            names = [self.ids[sequence] for sequence in sequences]
            solved, given = learn_batches(solved, [batch(name) for name in names], RATE)
            answers |= dict(zip(names, given, strict=True))
        return truing.Detector.of_state(solved), answers
