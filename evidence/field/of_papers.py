"""The detectors of evidence/rivals. Detectors that adapt to the stream read the mix in one fixed random order."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import truing
from truing import Outputs

from ..rivals.auto import auto
from ..rivals.combood import combood
from ..rivals.nac import DEFAULTS as NAC_DEFAULTS
from ..rivals.nac import nac
from ..rivals.oodd import DEFAULTS as OODD_DEFAULTS
from ..rivals.oodd import oodd
from ..rivals.rtl import COMPONENTS, PENALTY, PENALTY_OF_COMPONENTS, rtl, rtl_plus
from .protocol import Rival, Split, in_stream_order


def rivals(split: Split) -> Iterator[Rival]:
    """Yield the detectors."""
    yield Rival("OODD", "A, labels, mix", of_oodd)
    yield Rival("AUTO, head only", "A, labels, mix", of_auto)
    for base in ("msp", "energy"):
        yield Rival(f"RTL, {base}", "mix", partial(of_rtl, base))
        yield Rival(f"RTL++, {base}", "mix", partial(of_rtl_plus, base))
    yield Rival("NAC, last layer", "A", of_nac)
    yield Rival("CombOOD, last layer", "A", lambda split, rows: combood(split.a.features, rows.features))


def defaults_of(split: Split, defaults: dict[str, Any]) -> Any:
    """Return the authors' settings for the data set of a network; for CLINC150, those for CIFAR-100."""
    return defaults.get(split.network.split("-")[0], defaults["cifar100"])


def of_oodd(split: Split, mix: Outputs) -> tuple[None, Any]:
    """Return the scores of OODD."""
    a, settings = split.a, defaults_of(split, OODD_DEFAULTS)
    confidence = truing.SCORES["msp"](a)
    return None, in_stream_order(lambda rows: oodd(a.features, a.labels, confidence, rows.features, settings), mix)


def of_auto(split: Split, mix: Outputs) -> tuple[None, Any]:
    """Return the scores of AUTO, which updates only the head."""
    a, head = split.a, (split.weight, split.bias)
    return None, in_stream_order(lambda rows: auto(*head, a.features, a.labels, rows.features), mix)


def of_rtl(base: str, split: Split, mix: Outputs) -> tuple[None, Any]:
    """Return the scores of RTL."""
    return None, rtl(mix.features, truing.SCORES[base](mix))


def of_rtl_plus(base: str, split: Split, mix: Outputs) -> tuple[None, Any]:
    """Return the scores of RTL++, with the authors' settings for CIFAR or for ImageNet."""
    large = split.network.startswith("imagenet")
    options: dict[str, Any] = {"penalty": PENALTY_OF_COMPONENTS, "components": COMPONENTS} if large else {}
    return None, rtl_plus(mix.features, truing.SCORES[base](mix), **({"penalty": PENALTY} | options))


def of_nac(split: Split, rows: Outputs) -> Any:
    """Return the scores of NAC."""
    settings = defaults_of(split, NAC_DEFAULTS)
    return nac(split.weight, split.bias, split.a.features, rows.features, settings)
