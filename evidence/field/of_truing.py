"""The detectors of truing: contrast, base scores, and base scores trued on the mix, or on the reference and the mix."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import truing
from truing import Outputs

from .protocol import COMPONENTS, Rival, Split, components_of, in_stream_order

BATCH_ROWS = 32


def rivals(split: Split) -> Iterator[Rival]:
    """Yield the detectors."""
    yield Rival("contrast", "A, B, mix", contrast)
    for base in ("msp", "energy", "gen"):
        yield Rival(base, "nothing", lambda _, rows, base=base: truing.SCORES[base](rows))
    tag, k = components_of(split, COMPONENTS)
    for base in ("msp", "energy"):
        yield Rival(f"{base} + DLR{tag}", "mix", partial(of_mix, truing.fit_direct, base, k))
        yield Rival(f"{base} + RLR{tag}", "mix", partial(of_mix, truing.fit_robust, base, k))
        yield Rival(f"{base} + DLR{tag}", "A, B, mix", partial(of_both, base, k))
        if k is not None:
            yield Rival(f"{base} + DLR", "mix", partial(of_mix, truing.fit_direct, base, None))
    if len(split.weight) < 1000:  # The PCs of every batch of ImageNet would take ten minutes.
        yield Rival(f"msp + Online DLR{tag}", "mix", partial(online, k))


def contrast(split: Split, mix: Outputs) -> tuple[Any, Any]:
    """Return the scores of a contrast of A with the mix, decided by B."""
    fit = truing.fit_contrast(mix, split.a, calibration=split.b)
    return fit.scores_in, fit.predict(mix)


def of_mix(fit: Any, base: str, k: int | None, split: Split, mix: Outputs) -> tuple[None, Any]:
    """Return the scores of a base score that is trued on the mix."""
    return None, fit(mix.features, truing.SCORES[base](mix), components=k).predict(mix.features)


def of_both(base: str, k: int | None, split: Split, mix: Outputs) -> tuple[Any, Any]:
    """Return the scores of a base score that is trued on the reference and the mix."""
    reference = Outputs.concatenate((split.a, split.b))
    detection = truing.detect(mix, base=base, method="dlr", reference=reference, components=k)
    return detection.fit.predict(reference.features), detection.scores


def online(k: int | None, split: Split, mix: Outputs) -> tuple[None, Any]:
    """Return the scores of Online DLR, batch by batch."""
    options: dict[str, Any] = {"base": "msp", "method": "online", "batch": BATCH_ROWS, "components": k}
    return None, in_stream_order(lambda rows: truing.detect(rows, **options).scores, mix)
