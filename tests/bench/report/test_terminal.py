import re
from statistics import fmean

from truing.bench.report.terminal import MEAN, decided, fitted, headline, hurts, lines, notes, per_cent, text

SETS = ("svhn", "dtd10", "cifar100")


def row(method, fpr95, auroc, *, base="msp", outside="svhn"):
    names = {"base": base, "outside": outside, "method": method, "scored": "fitted"}
    return {**names, "rows_in": 10, "rows_out": 5, "value": 32, "fpr95": fpr95, "auroc": auroc}


def test_every_line_has_the_numbers_of_its_rows(ran):
    blocks = text(ran.rows).split("\n\n")[1:3]
    contrast = {row["outside"]: row for row in decided(ran.rows) if row["method"] == "contrast"}
    for base, block in zip(("msp", "energy"), blocks, strict=True):
        assert block.startswith(base)
        printed = {line.split()[0]: re.split(r"[ */]+", line) for line in block.splitlines()}
        every = []
        for outside in SETS:
            own = {row["method"]: row for row in fitted(ran.rows) if (row["base"], row["outside"]) == (base, outside)}
            methods = [*(own[method] for method in ("none", "DLR", "RLR", "Online DLR")), contrast[outside]]
            every.append([row[name] for row in methods for name in ("fpr95", "auroc")])
            assert [word for word in printed[outside] if "." in word] == list(map(per_cent, every[-1]))
        means = [per_cent(fmean(column)) for column in zip(*every, strict=True)]
        assert [word for word in printed[MEAN] if "." in word] == means


def test_the_last_table_has_detected_shares_and_mean_false_alarm_rates(ran):
    block = next(block for block in text(ran.rows).split("\n\n") if block.startswith("detected at 5 %"))
    names = {"msp": ("msp", "none"), "msp + DLR": ("msp", "DLR"), "energy": ("energy", "none")}
    names |= {"energy + DLR": ("energy", "DLR"), "contrast": ("gen", "contrast")}
    head, *printed = block.splitlines()
    assert re.split(r" {2,}", head)[2:] == list(names)
    rows = {(row["base"], row["method"], row["outside"]): row for row in decided(ran.rows)}
    for outside in SETS:
        (line,) = [line for line in printed if line.startswith(outside)]
        assert line.split()[2:] == [per_cent(rows[*key, outside]["detected"]) for key in names.values()]
    alarms = [fmean(rows[*key, outside]["false_alarms"] for outside in SETS) for key in names.values()]
    assert printed[-1].split()[3:] == list(map(per_cent, alarms))


def test_the_headline_has_the_means_of_the_first_table(ran):
    mean = next(line for line in lines(ran.rows) if line.outside == MEAN)
    shown = [mean.cells[method].fpr95 for method in ("base", "DLR", "contrast")]
    assert re.findall(r"([\d.]+) %", headline(ran.rows)) == shown
    assert text(ran.rows).splitlines()[0] == headline(ran.rows)


def test_the_best_printed_values_of_a_line_are_marked():
    line, _ = lines([row("none", 0.3, 0.99996), row("DLR", 0.20001, 1.0), row("RLR", 0.2, 0.9)])
    assert [cell.best_fpr95 for cell in line.cells.values()] == [False, True, True]
    assert [cell.best_auroc for cell in line.cells.values()] == [True, True, False]


def test_every_printed_fall_of_auroc_is_named():
    rows = [row("none", 0.5, 0.80), row("DLR", 0.6, 0.79), row("RLR", 0.6, 0.81)]
    rows += [row("none", 0.5, 0.80, outside="mnist"), row("DLR", 0.6, 0.7999, outside="mnist")]
    rows += [row("none", 0.5, 0.80, base="energy"), row("DLR", 0.6, 0.75, base="energy")]
    assert hurts(rows) == ("Where truing hurts: AUROC fell, in points, on svhn (msp: DLR -1.0; energy: DLR -5.0).")
    assert "AUROC fell on none" in hurts([row("none", 0.5, 0.8), row("DLR", 0.6, 0.8)])


def test_contrast_is_explained_only_if_it_ran(ran):
    assert "not the paper's method" in " ".join(notes(ran.rows))
    assert "Contrast" not in " ".join(notes(fitted(ran.rows)))
