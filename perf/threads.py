"""Two threads against one, on at least 200,000 rows, beside what two bare threads gain here at the same moment.

The last are the limits. Exponentials of numbers in the cache, half of them in each of two Python threads, have nothing
to wait for but the machine: where others use it too, they do not gain 2. The largest of numbers in memory, half of them
in each thread, waits for the memory, which the cores share: what reads each number once cannot gain more.
"""

import threading
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

import truing
from _features import like_a_network
from _rows import Row, faster, report
from _timing import Measure, race

ROWS = 200_000


def works() -> dict[str, Callable[[], object]]:
    """Return what is timed, by its name."""
    features, scores = like_a_network(ROWS, 128)
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (ROWS, 100)).astype(np.float32)
    weight, bias = rng.normal(size=(100, 128)), rng.normal(size=100)
    known, known_logits = features[::1000], logits[::1000] + 9
    fit = truing.fit_direct(features, scores)
    short, own = features[:, :64].copy(), scores + rng.normal(0, 0.01, ROWS)
    scores_in, scores_out = rng.normal(2, 1, 1_000_000), rng.normal(0, 1, 1_000_000)
    few = slice(0, ROWS, 10)
    return {
        "Moments.of": lambda: truing.Moments.of(features, scores),
        "predict": lambda: fit.predict(features),
        "msp": lambda: truing.msp(logits),
        "energy": lambda: truing.energy(logits),
        "kl_uniform": lambda: truing.kl_uniform(logits),
        "max_logit": lambda: truing.max_logit(logits),
        "gen": lambda: truing.gen(logits),
        "gradnorm": lambda: truing.gradnorm(features, logits),
        "scale": lambda: truing.scale(features, weight, bias),
        "ash": lambda: truing.ash(features, weight, bias),
        "fdbd": lambda: truing.fdbd(features, logits, weight, np.ones(128)),
        "nci": lambda: truing.nci(features, logits, weight, np.ones(128)),
        "vim": lambda: truing.vim(features, logits, weight, bias, known, known_logits),
        "knn, a tenth of the rows": lambda: truing.knn(features[few], known),
        "huber, d = 64": lambda: truing.huber(short, own, 1e-2),
        "evaluate, 2,000,000 scores": lambda: truing.evaluate(scores_in, scores_out),
    }


def bare(threads: int, work: Callable[[int], object]) -> None:
    """Do `work` in so many threads, each of which is told its number."""
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def compute(threads: int, passes: int = 3000) -> None:
    """Take exponentials of numbers in the cache, in so many threads."""
    numbers = np.linspace(-9.0, 0.0, 2**13)

    def work(number: int) -> None:
        out = np.empty_like(numbers)
        for _ in range(passes // threads):
            np.exp(numbers, out=out)

    bare(threads, work)


def read(threads: int, numbers: NDArray[np.float32]) -> None:
    """Find the largest of numbers in memory, in so many threads."""
    parts = np.array_split(numbers, threads)
    bare(threads, lambda number: parts[number].max())


def on(threads: int, work: Callable[[], object]) -> None:
    truing.threads(threads)
    try:
        work()
    finally:
        truing.threads(None)


def gain(work: Callable[[], object], memory: NDArray[np.float32]) -> tuple[Measure, Measure, float, float]:
    """Return the times of a piece of work on two threads and on one, and what two bare threads gained meanwhile."""
    two, one, *bare_times = race(
        lambda: on(2, work),
        lambda: on(1, work),
        lambda: compute(2),
        lambda: compute(1),
        lambda: read(2, memory),
        lambda: read(1, memory),
    )
    computing_two, computing, reading_two, reading = (measure.value for measure in bare_times)
    return two, one, computing / computing_two, reading / reading_two


def measure() -> Iterator[Row]:
    memory = np.random.default_rng(0).standard_normal(ROWS * 128, dtype=np.float32)
    for name, work in works().items():
        two, one, computing, reading = gain(work, memory)
        note = f"two bare threads meanwhile: {computing:.2f} × computing, {reading:.2f} × reading"
        yield faster(f"two threads, {ROWS:,} rows: {name}", two, "one thread", one, 1.7, note=note)


if __name__ == "__main__":
    report(measure)
