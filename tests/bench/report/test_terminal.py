import pytest

from truing.bench.report.terminal import hurts, lines, notes, per_cent, text
from truing.bench.trials import MEAN, Row


def row(method, fpr95, auroc, *, base="msp", outside="svhn"):
    return Row(base, outside, method, rows_in=10, rows_out=5, fpr95=fpr95, auroc=auroc)


def test_the_text_prints_the_numbers_of_every_row_on_its_line(ran):
    _, rows = ran
    blocks = text(rows).split("\n\n")[:2]
    for base, block in zip(("msp", "energy"), blocks, strict=True):
        assert block.startswith(base)
        printed = {line.split()[0]: line.replace("*", " ").split() for line in block.splitlines()}
        for outside in ("svhn", "dtd10", "cifar100", MEAN):
            own = [row for row in rows if (row.base, row.outside) == (base, outside)]
            wanted = [f"{100 * share:.1f}" for row in own for share in (row.fpr95, row.auroc)]
            assert [word for word in printed[outside] if "." in word] == wanted


def test_the_text_fits_a_terminal_of_100_columns(ran):
    assert max(map(len, text(ran[1]).splitlines())) <= 100


def test_the_best_of_a_line_is_judged_by_what_is_printed():
    (line,) = lines([row("base", 0.3, 0.99996), row("DLR", 0.20001, 1.0), row("RLR", 0.2, 0.9)])
    assert [cell.best_fpr95 for cell in line.cells.values()] == [False, True, True]
    assert [cell.best_auroc for cell in line.cells.values()] == [True, True, False]


def test_where_it_hurts_names_each_fall_of_auroc_and_nothing_else():
    rows = [
        row("base", 0.5, 0.80),
        row("DLR", 0.6, 0.79),
        row("RLR", 0.6, 0.81),
        row("base", 0.5, 0.80, outside="mnist"),
        row("DLR", 0.6, 0.7999, outside="mnist"),
        row("base", 0.5, 0.80, base="energy"),
        row("DLR", 0.6, 0.75, base="energy"),
        row("base", 0.5, 0.80, outside=MEAN),
        row("DLR", 0.6, 0.70, outside=MEAN),
    ]
    assert hurts(rows) == ("Where it hurts: AUROC fell, in points, on svhn (msp: DLR -1.0; energy: DLR -5.0).")


def test_where_it_hurts_says_so_when_nothing_fell():
    assert "nowhere" in hurts([row("base", 0.5, 0.8), row("DLR", 0.6, 0.8)])


@pytest.mark.parametrize(
    "choice",
    [
        "10 rows",
        "at-least",
        "batches of 32",
        "seed 0",
        "penalty 1e-5",
        "keep 0.8",
        "intercept",
        "temperature 1",
        "unweighted",
    ],
)
def test_the_notes_state_every_choice(choice):
    assert choice in " ".join(notes([row("base", 0.5, 0.8)]))


def test_a_share_is_printed_in_per_cent_with_one_decimal():
    assert [per_cent(share) for share in (0.0, 0.09449, 1.0)] == ["0.0", "9.4", "100.0"]
