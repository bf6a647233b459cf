"""Rows in the form of real runs with invented numbers: three values, all sets, and figures of a small mix."""

import numpy as np

from truing.bench.experiments.cases import CASES, CONTRAST, display_name, is_run, sets_of
from truing.bench.experiments.figure_rows import figure_rows
from truing.bench.experiments.mixes import Mix
from truing.bench.experiments.protocols import Job
from truing.bench.experiments.settings import SETTINGS

METHODS = {
    "table": ("DLR", "RLR"),
    "online": ("Online DLR",),
    "batch-size": ("Online DLR",),
    "kept-share": ("RLR",),
    "react": ("ReAct", "ReAct + DLR, raw", "ReAct + DLR, clipped"),
    "intercept": ("DLR, no intercept", "RLR, no intercept"),
    "classical": (),
}
WITHOUT_VALUE = {"kept-share": ("none",), "react": ("none", "DLR"), "batch-size": ("DLR",)}
RAN = (
    ("truing", "cifar10-resnet56"),
    ("authors", "cifar10-resnet56"),
    ("truing", "imagenet-efficientnet-lite0"),
)


def invented():
    """Return the rows of every case, by both conventions on one setting and by one on another."""
    rng = np.random.default_rng(0)
    rows = [
        {"case": case.name, "setting": name, "conventions": conventions, **row}
        for conventions, name in RAN
        for case in CASES.values()
        if case.name != "pictures" and is_run(case, SETTINGS[name], conventions)
        for row in _rows(case, SETTINGS[name], rng)
    ]
    names = {"case": "pictures", "setting": RAN[0][1], "conventions": "truing", "outside": "dtd10"}
    return [*rows, *({**names, **row} for row in figure_rows(job()))]


def job():
    """Return the pictures of a mix of 120 rows and 60."""
    rng = np.random.default_rng(1)
    is_out = np.arange(180) >= 120
    features = rng.normal(size=(180, 6)) - 1.5 * is_out[:, None] * np.eye(6)[0]
    energy = features[:, 0] + rng.normal(size=180)
    mix = Mix(features, {"msp": 1 / (1 + np.exp(-energy)), "energy": energy}, 120, np.outer(energy, [1, 0, 0]))
    return Job(SETTINGS[RAN[0][1]], CASES["pictures"], mix)


def abouts():
    """Return where such rows would come from."""
    return [_about(*names, case) for names in RAN for case in CASES]


def _about(conventions, setting, case):
    settings = {"case": case, "setting": setting, "conventions": conventions, "seed": 0, "repeats": 10}
    return {
        "settings": {**settings, "penalty": 1e-5, "keep": 0.8, "components": None, "bases": ["msp"], "values": []},
        "data": {SETTINGS[setting].inside: "0123456789abcdef", "dtd10": "fedcba9876543210"},
        "versions": {"truing": "0.1.0", "numpy": "2.0.0"},
        "machine": "Linux x86_64, 2 cores",
        "date": "2026-01-02",
    }


def _rows(case, setting, rng):
    values = case.values[:: max(1, len(case.values) // 2)] or (None,)
    bases = case.bases if case.name != "classical" else ("isolation-forest", "lof", setting.mixture)
    for files in sets_of(case, setting):
        for base in bases:
            level = WITHOUT_VALUE.get(case.name, ())
            own = METHODS.get(case.name, ("DLR",)) if base != "gradnorm" else ()
            if case.has_reference:
                own = [method for method in case.methods if base == "gen" or method != CONTRAST]
            varied = [] if case.name == "intercept" else ["none"]
            varied = [method for method in (*varied, *own) if method not in level]
            for method, value in [*((method, None) for method in level), *((m, v) for m in varied for v in values)]:
                is_fitted = case.has_reference or method in ("none", "ReAct")
                for scored in ("fitted",) if is_fitted else ("fitted", "unseen"):
                    row = _row(display_name(setting, files), base, method, scored, value, case.name, rng)
                    yield row | ({"detected": row["aupr"], "false_alarms": row["fpr95"]} if case.has_reference else {})


def _row(outside, base, method, scored, value, case, rng):
    fpr95, auroc, aupr = (round(float(share), 6) for share in rng.uniform(size=3))
    row = {"outside": outside, "base": base, "method": method, "scored": scored}
    row |= {} if value is None else {"value": value}
    row |= {"repeats": 2, "rows_in": 1000, "rows_out": 200, "fpr95": fpr95}
    row |= {"fpr95_paper": fpr95 / 2, "aupr": aupr}
    return row | {"auroc": auroc, "fpr95_sd": 0.01, "auroc_sd": 0.02}
