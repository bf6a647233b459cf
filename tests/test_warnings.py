"""Warnings of truing."""

import pytest

import truing
from truing._warnings import Alert, warn, warn_of


def test_a_warning_points_at_the_line_that_called_truing():
    with pytest.warns(truing.TruingWarning, match="look here") as caught:
        warn("look here")
    assert [one.filename for one in caught] == [__file__]


def test_alerts_are_warnings_and_other_notes_are_not():
    with pytest.warns(truing.TruingWarning) as caught:
        warn_of(["a plain note", Alert("an alert")])
    assert [str(one.message) for one in caught] == ["an alert"]


def test_knn_on_columns_of_other_scales_is_noticed():
    names = ("clinc150-test", "clinc150-val")
    rows, reference = (truing.Outputs(truing.sample(name).features.astype(float)) for name in names)
    truing.detect(rows, reference, base="knn", method="none")
    for outputs in (rows, reference):
        outputs.features[:, :3] = 300 + 100 * outputs.features[:, :3]
    with pytest.warns(truing.TruingWarning, match=r"so knn ignores most columns: standardise the columns"):
        truing.detect(rows, reference, base="knn", method="none")
