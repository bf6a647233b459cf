from truing.bench.report.best import with_best
from truing.report.markup import table_in_html
from truing.report.table import Table


def best(title, heads, *lines):
    return sorted(with_best(Table(f"net: {title}", heads, lines)).best)


def test_the_best_value_of_a_column_is_the_lowest_fpr95_and_the_highest_auroc():
    heads = ("base, method", "FPR95", "FPR95 paper", "AUROC", "false alarms", "repeats")
    lines = [("msp", "54.8", "", "89.9", "4.9", "1"), ("msp + DLR", "20.5 ± 0.1", "12.30", "95.2", "5.0", "1")]
    assert best("mean over the sets", heads, *lines) == [(1, 1), (1, 3)]


def test_all_ties_are_best_and_empty_cells_are_not():
    assert best("AUROC, set by set", ("base", "svhn"), ("a", "90.0"), ("b", "90.0"), ("c", "")) == [(0, 1), (1, 1)]


def test_in_a_table_of_mixes_every_line_has_a_best_value():
    lines = [("svhn", "68.3", "9.4"), ("svhn + dtd10", "20.0", "21.0")]
    assert best("FPR95", ("sets", "msp", "msp + DLR"), *lines) == [(0, 2), (1, 1)]


def test_the_best_values_are_bold_in_html():
    html = table_in_html(with_best(Table("AUROC", ("base", "svhn"), (("a", "89.0"), ("b & c", "97.6")))))
    assert '<th scope="row">b &amp; c</th><td><b>97.6</b></td>' in html
    assert "<td>89.0</td>" in html
