"""A process that learns batches from several threads until it is killed, and says which were acknowledged.

    python -m tests.service.client DIRECTORY REMOVED DETECTOR START...

DETECTOR is a name in WATCHED, plain, or changed: a plain one that is calibrated and reset all the time. Each thread
goes on with the batch number given, and sends the one before it once more. Segments of the log that are no longer
needed are kept in the directory REMOVED.
"""

import os
import shutil
import sys
import threading
from itertools import count
from pathlib import Path

from truing.service import engine as engine_module
from truing.service import log as log_module

from .streams import KNOWN_ROWS, WATCHED, batch, learn, opened, replayed


def main(folder: Path, removed: Path, detector: str, starts: list[int]) -> None:
    engine_module.SNAPSHOT_LOG_BYTES = 20_000
    engine_module.SNAPSHOT_LOG_RATIO = 0
    keep_segments(removed)
    engine = opened(folder, WATCHED[detector]() if detector in WATCHED else None, segment_bytes=8000)
    if detector in WATCHED and engine.facts().reference_rows == 0:
        engine.calibrate(batch("reference", KNOWN_ROWS)).result()
    replayed(["warm"]).score(batch("warm"))  # Loads what is loaded when it is first needed.
    os.write(1, b"ready\n")

    def client(number: int, start: int) -> None:
        for turn in count(max(0, start - 1)):
            answer = learn(engine, f"{number}-{turn}")
            os.write(1, f"{number} {turn} {int(answer.repeated)}\n".encode())

    def change() -> None:
        for turn in count():
            engine.calibrate(batch(f"reference{turn}", 60)).result()
            engine.reset().result()
            os.write(1, f"-1 {turn} 0\n".encode())

    if detector == "changed":
        threading.Thread(target=change, daemon=True).start()
    for number, start in enumerate(starts):
        threading.Thread(target=client, args=(number, start), daemon=True).start()
    threading.Event().wait()


def keep_segments(removed: Path) -> None:
    """Have segments copied before they are removed."""
    remove_up_to = log_module.Log.remove_up_to

    def copied(log, sequence):
        for path in log_module.segments(log.folder).values():
            shutil.copy(path, removed / f"{path.name}.draft")
            (removed / f"{path.name}.draft").replace(removed / path.name)
        remove_up_to(log, sequence)

    log_module.Log.remove_up_to = copied


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], [int(start) for start in sys.argv[4:]])
