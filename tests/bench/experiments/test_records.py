import json

import pytest

from truing.bench.experiments.records import Record, about, read, read_abouts

SETTINGS = {"case": "table", "setting": "cifar10-resnet56", "conventions": "truing"}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "svhn.npz"
    path.write_bytes(b"rows")
    return path


@pytest.fixture
def record(tmp_path, source):
    made = Record(tmp_path / "rows" / "table.jsonl")
    assert made.start(about(SETTINGS, {"svhn": source})) == set()
    made.add("svhn", 1.5, [{"base": "msp", "auroc": 0.5}])
    return made


def test_a_row_says_its_case_setting_and_conventions(record):
    assert list(record.rows()) == [{**SETTINGS, "base": "msp", "auroc": 0.5}]


def test_what_is_done_is_known_when_a_run_goes_on(record, source):
    assert record.start(about(SETTINGS, {"svhn": source})) == {"svhn"}
    assert len(read_abouts(record.path.parent)) == 1


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_last_line_is_as_if_it_had_not_been_written(record, source, cut):
    record.add("dtd10", 1.0, [{"base": "msp", "auroc": 0.7}])
    record.path.write_bytes(record.path.read_bytes()[:-cut])
    assert record.start(about(SETTINGS, {"svhn": source})) == {"svhn"}
    record.add("dtd10", 1.0, [{"base": "msp", "auroc": 0.7}])
    assert [row["auroc"] for row in record.rows()] == [0.5, 0.7]


def test_rows_of_other_data_are_not_added_to(record, source):
    source.write_bytes(b"other rows")
    before = record.path.read_bytes()
    with pytest.raises(ValueError, match=r"was made from another svhn"):
        record.start(about(SETTINGS, {"svhn": source}))
    assert record.path.read_bytes() == before


def test_rows_of_other_settings_are_not_added_to(record, source):
    with pytest.raises(ValueError, match=r"was made with other settings"):
        record.start(about({**SETTINGS, "seed": 1}, {"svhn": source}))


def test_more_data_and_another_version_are_told_behind_the_rows_before(record, source, tmp_path):
    more = tmp_path / "dtd10.npz"
    more.write_bytes(b"more rows")
    later = about(SETTINGS, {"svhn": source, "dtd10": more})
    later["versions"]["numpy"] = "99"
    assert record.start(later) == {"svhn"}
    assert [one["versions"]["numpy"] == "99" for one in read_abouts(record.path.parent)] == [False, True]


def test_every_record_below_a_folder_is_read(record, tmp_path):
    (tmp_path / "rows" / "deeper").mkdir()
    (tmp_path / "rows" / "deeper" / "copy.jsonl").write_bytes(record.path.read_bytes())
    assert len(read(tmp_path / "rows")) == 2


def test_a_folder_without_rows_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="truing bench run makes them"):
        read(tmp_path)


def test_a_record_that_nothing_came_of_is_begun_anew(tmp_path, source):
    made = Record(tmp_path / "rows" / "table.jsonl")
    made.start(about(SETTINGS, {"svhn": source}))
    source.write_bytes(b"the right rows")
    assert made.start(about(SETTINGS, {"svhn": source})) == set()
    assert len(read_abouts(tmp_path / "rows")) == 1


def test_two_runs_do_not_write_one_record(record):
    with record.held(), pytest.raises(ValueError, match="is being written by another run"), Record(record.path).held():
        pass
    with record.held():
        pass


@pytest.mark.parametrize(
    "line", ["[1]", "{}", '{"job": "svhn", "rows": []}', '{"about": {"settings": {"case": "no"}}}']
)
def test_lines_that_are_no_record_are_named(record, line):
    record.path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"table\.jsonl must hold the rows of an experiment"):
        read(record.path.parent)


def test_a_line_that_is_no_json_is_named(record):
    record.path.write_bytes(b"{nonsense\n")
    with pytest.raises(ValueError, match=r"table\.jsonl must hold JSON lines"):
        record.lines()


def test_where_rows_come_from_is_whole(source):
    told = about(SETTINGS, {"svhn": source})
    assert set(told) == {"settings", "data", "versions", "machine", "date"}
    assert set(told["versions"]) == {"python", "truing", "numpy", "scipy", "scikit-learn"}
    assert json.loads(json.dumps(told)) == told
