import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truing.bench.experiments.records import Record, about, read
from truing.bench.experiments.settings import SETTINGS

CHOICES = {"case": "table", "setting": "cifar10-resnet56", "conventions": "truing"}
SETTING = SETTINGS["cifar10-resnet56"]
CODE = {"version": "0.1.0", "sha256": "0123456789abcdef"}
OTHER_CODE = {"version": "0.1.0", "sha256": "fedcba9876543210"}


def row(auroc):
    names = {"outside": "svhn-recropped", "base": "msp", "method": "none", "scored": "fitted"}
    return {**names, "repeats": 1, "fpr95": 0.5, "auroc": auroc}


def told(choices=CHOICES, code=CODE, setting=SETTING, **files):
    data = {name: {"sha256": digest, "rows": 3, "made": None} for name, digest in (files or {"svhn": "aa"}).items()}
    return about(choices, setting, data, code)


@pytest.fixture
def record(tmp_path):
    made = Record(tmp_path / "rows" / "table.jsonl")
    assert made.start(told()) == set()
    made.add("svhn", 1.5, [row(0.5)])
    return made


def abouts(record):
    return [line["about"] for line in record.lines() if "about" in line]


def test_a_row_says_its_case_setting_and_conventions(record):
    assert list(record.rows()) == [{**CHOICES, **row(0.5)}]


def test_what_is_done_is_known_when_a_run_goes_on(record):
    assert record.start(told()) == {"svhn"}
    assert len(abouts(record)) == 1


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_last_line_is_as_if_it_had_not_been_written(record, cut):
    record.add("dtd10", 1.0, [row(0.7)])
    record.path.write_bytes(record.path.read_bytes()[:-cut])
    assert record.start(told()) == {"svhn"}
    record.add("dtd10", 1.0, [row(0.7)])
    assert [row["auroc"] for row in record.rows()] == [0.5, 0.7]


def test_rows_of_other_data_are_not_added_to(record):
    before = record.path.read_bytes()
    with pytest.raises(ValueError, match=r"was made from another svhn"):
        record.start(told(svhn="bb"))
    assert record.path.read_bytes() == before


def test_rows_of_other_choices_or_of_another_setting_are_not_added_to(record):
    with pytest.raises(ValueError, match=r"was made with other settings"):
        record.start(told({**CHOICES, "seed": 1}))
    with pytest.raises(ValueError, match=r"was made with other settings"):
        record.start(told(setting=SETTINGS["cifar10-wrn40-2"]))


def test_more_data_and_another_version_are_told_behind_the_rows_before(record):
    later = told(svhn="aa", dtd10="bb")
    later["versions"]["numpy"] = "99"
    assert record.start(later) == {"svhn"}
    assert [one["versions"]["numpy"] == "99" for one in abouts(record)] == [False, True]


@given(
    runs=st.lists(
        st.tuples(st.sampled_from([CODE, OTHER_CODE]), st.sets(st.sampled_from("abcd"))), min_size=1, max_size=5
    )
)
def test_only_what_this_code_has_done_counts_as_done_and_the_last_run_of_a_job_is_its_rows(runs, tmp_path_factory):
    """Runs of two versions of the code in any order, each interrupted anywhere."""
    record = Record(tmp_path_factory.mktemp("rows") / "table.jsonl")
    last = {}
    for number, (code, jobs) in enumerate(runs):
        done = record.start(told(code=code))
        assert done == {job for job, (by, _) in last.items() if by == code}
        assert record.outdated(code) == set(last) - done
        for job in sorted(jobs - done):
            record.add(job, 0.0, [row(number / 10)])
            last[job] = (code, number / 10)
    found = {job: (where["code"], rows[0]["auroc"]) for job, (where, rows) in record.jobs().items()}
    assert found == last


def test_rows_that_name_no_code_do_not_count_as_done_and_are_read_all_the_same(record):
    lines = record.path.read_text().splitlines()
    first = json.loads(lines[0])
    old = {name: value for name, value in first["about"].items() if name not in ("code", "setting")}
    old["data"] = {"svhn": "aa"}  # As version 0.1.0 wrote it.
    record.path.write_text("\n".join([json.dumps({"about": old}), *lines[1:], ""]))
    results = read(record.path.parent)
    assert results.rows == [{**CHOICES, **row(0.5)}]
    assert results.files("cifar10-resnet56") == {"svhn": {"sha256": "aa"}}
    assert record.start(told()) == set()
    assert record.outdated(CODE) == {"svhn"}


def test_every_record_below_a_folder_is_read(record, tmp_path):
    (tmp_path / "rows" / "deeper").mkdir()
    (tmp_path / "rows" / "deeper" / "copy.jsonl").write_bytes(record.path.read_bytes())
    assert len(read(tmp_path / "rows").rows) == 2


def test_a_folder_without_rows_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="truing bench run makes them"):
        read(tmp_path)


def test_a_record_that_nothing_came_of_is_begun_anew(tmp_path):
    made = Record(tmp_path / "rows" / "table.jsonl")
    made.start(told())
    assert made.start(told(svhn="bb")) == set()
    assert len(abouts(made)) == 1


def test_two_runs_do_not_write_one_record(record):
    with (
        record.locked(),
        pytest.raises(ValueError, match="is being written by another run"),
        Record(record.path).locked(),
    ):
        pass
    with record.locked():
        pass


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        "{}",
        '{"job": "svhn", "rows": []}',
        '{"about": {"settings": {"case": "no"}}}',
        '{"about": {"settings": {"case": [], "setting": {}, "conventions": 1}, "data": {}}}',
        '{"about": 3}',
    ],
)
def test_lines_that_are_no_record_are_named(record, line):
    record.path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"table\.jsonl must hold the rows of an experiment"):
        read(record.path.parent)


@pytest.mark.parametrize(
    "row", [3, {}, {"outside": "svhn"}, {**row(0.5), "auroc": "high"}, {"outside": "svhn", "picture": "of a cat"}]
)
def test_a_row_that_lacks_what_tables_need_is_refused_by_the_name_of_its_file(record, row):
    record.add("dtd10", 1.0, [row])
    with pytest.raises(ValueError, match=r"table\.jsonl must hold the rows of an experiment"):
        read(record.path.parent)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [({"inside": 3}, "inside must be str"), ({"outside": {"a": 1}}, "must hold names"), ({"extra": 1}, "got extra")],
)
def test_a_setting_that_makes_no_sense_is_refused_by_the_name_of_its_file(record, change, wanted):
    lines = [json.loads(line) for line in record.path.read_text().splitlines()]
    lines[0]["about"]["setting"] |= change
    record.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=rf"table\.jsonl must tell its setting: .*{wanted}"):
        read(record.path.parent)


def test_a_line_that_is_no_json_is_named(record):
    record.path.write_bytes(b"{nonsense\n")
    with pytest.raises(ValueError, match=r"table\.jsonl must hold JSON lines"):
        record.lines()


def test_a_record_gives_back_the_setting_that_it_was_run_on(record):
    assert read(record.path.parent).settings == {"cifar10-resnet56": SETTING}


def test_where_rows_come_from_is_whole():
    found = told()
    assert set(found) == {"settings", "setting", "data", "code", "versions", "machine", "date"}
    assert set(found["versions"]) == {"python", "truing", "numpy", "scipy", "scikit-learn"}
    assert json.loads(json.dumps(found)) == found


def test_a_record_with_another_name_is_not_written(tmp_path):
    record, other = Record(tmp_path / "a.jsonl"), tmp_path / "b.jsonl"
    record.path.write_bytes(b"")
    other.hardlink_to(record.path)
    with pytest.raises(ValueError, match=r"a\.jsonl must be a file of one name, got a hard link"), record.locked():
        pytest.fail("it was written")
    other.unlink()
    with record.locked():
        pass
