import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truing.bench.experiments.records import Record, about, read
from truing.bench.experiments.settings import SETTINGS

CHOICES = {"case": "table", "seed": 0, "setting": "cifar10-resnet56", "conventions": "truing", "bases": ["msp"]}
NAMES = {name: CHOICES[name] for name in ("case", "setting", "conventions")}
SETTING = SETTINGS["cifar10-resnet56"]
COMMIT, OTHER_COMMIT = "0123456789", "fedcba9876"


def row(auroc):
    names = {"outside": "svhn-recropped", "base": "msp", "method": "none", "scored": "fitted"}
    return {**names, "repeats": 1, "fpr95": 0.5, "auroc": auroc}


def origin(choices=CHOICES, commit=COMMIT, setting=SETTING, **files):
    data = {name: {"sha256": digest, "rows": 3, "made": None} for name, digest in (files or {"svhn": "aa"}).items()}
    return about(choices, setting, data, commit)


@pytest.fixture
def record(tmp_path):
    record = Record(tmp_path / "rows" / "table.jsonl")
    assert record.start(origin()) == set()
    record.add("svhn", 1.5, [row(0.5)])
    return record


def origins(record):
    return [line["about"] for line in record.lines() if "about" in line]


def test_all_records_in_a_folder_and_its_subfolders_are_read(record, tmp_path):
    results = read(record.path.parent)
    assert results.rows == [{**NAMES, **row(0.5)}]
    assert results.settings == {"cifar10-resnet56": SETTING}
    assert results.abouts == [origin()]
    (tmp_path / "rows" / "deeper").mkdir()
    (tmp_path / "rows" / "deeper" / "copy.jsonl").write_bytes(record.path.read_bytes())
    assert len(read(tmp_path / "rows").rows) == 2


@pytest.mark.parametrize("cut", range(1, 40, 6))
def test_an_incomplete_last_line_is_ignored(record, cut):
    record.add("dtd10", 1.0, [row(0.7)])
    record.path.write_bytes(record.path.read_bytes()[:-cut])
    assert record.start(origin()) == {"svhn"}
    record.add("dtd10", 1.0, [row(0.7)])
    assert [row["auroc"] for row in record.rows()] == [0.5, 0.7]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"svhn": "bb"}, "was made from another svhn"),
        ({"choices": {**CHOICES, "seed": 1}}, "was made with other parameters"),
        ({"setting": SETTINGS["cifar10-wrn40-2"]}, "was made with other parameters"),
    ],
)
def test_rows_of_other_data_parameters_or_settings_are_not_mixed(record, change, message):
    before = record.path.read_bytes()
    with pytest.raises(ValueError, match=message):
        record.start(origin(**change))
    assert record.path.read_bytes() == before


@pytest.mark.parametrize("change", [{"bases": ["msp", "gen"]}, {"own": {"scores": {"mine": "scores"}}}])
def test_jobs_with_other_scores_are_repeated(record, change):
    later = origin({**CHOICES, **change})
    assert record.start(later) == set()
    assert record.outdated(later) == {"svhn"}


@given(
    runs=st.lists(
        st.tuples(st.sampled_from([COMMIT, OTHER_COMMIT]), st.sets(st.sampled_from("abcd"))), min_size=1, max_size=5
    )
)
def test_jobs_of_another_commit_are_repeated_and_the_last_run_of_a_job_counts(runs, tmp_path_factory):
    """Runs with two commits in any order, each interrupted anywhere."""
    record = Record(tmp_path_factory.mktemp("rows") / "table.jsonl")
    last = {}
    for number, (commit, jobs) in enumerate(runs):
        done = record.start(origin(commit=commit))
        assert done == {job for job, (by, _) in last.items() if by == commit}
        assert record.outdated(origin(commit=commit)) == set(last) - done
        for job in sorted(jobs - done):
            record.add(job, 0.0, [row(number / 10)])
            last[job] = (commit, number / 10)
    assert last == {job: (where["commit"], rows[0]["auroc"]) for job, (where, rows) in record.jobs().items()}


def test_records_of_version_0_1_can_be_read_and_their_jobs_are_repeated(record):
    lines = record.path.read_text().splitlines()
    first = json.loads(lines[0])
    old = {name: value for name, value in first["about"].items() if name not in ("commit", "seed", "setting")}
    old["data"] = {"svhn": "aa"}
    record.path.write_text("\n".join([json.dumps({"about": old}), *lines[1:], ""]))
    results = read(record.path.parent)
    assert results.rows == [{**NAMES, **row(0.5)}]
    assert results.files("cifar10-resnet56") == {"svhn": {"sha256": "aa"}}
    assert record.start(origin()) == set()
    assert record.outdated(origin()) == {"svhn"}


def test_a_folder_without_rows_is_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match="create rows with truing bench run"):
        read(tmp_path)


def test_a_record_without_finished_jobs_starts_again_with_any_data(tmp_path):
    record = Record(tmp_path / "rows" / "table.jsonl")
    record.start(origin())
    assert record.start(origin(svhn="bb")) == set()
    assert len(origins(record)) == 1


def test_two_runs_cannot_write_one_record(record):
    other = Record(record.path)
    with record.locked(), pytest.raises(ValueError, match="is being written by another run"), other.locked():
        pass
    with other.locked():
        pass


START = json.dumps({"about": origin()})
JOB = json.dumps({"job": "svhn", "seconds": 1.0, "rows": [row(0.5)]})
LACKING = "must contain rows of an experiment"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{nonsense"], "must contain JSON lines"),
        (["[1]"], LACKING),
        (['{"job": "svhn", "rows": []}'], LACKING),
        (['{"about": 3}'], LACKING),
        ([START, '{"job": "dtd10", "rows": [3]}'], LACKING),
        ([START, '{"job": "dtd10", "rows": [{"outside": "svhn", "picture": "of a cat"}]}'], LACKING),
        (['{"about": {"settings": {"case": [], "setting": {}, "conventions": 1}, "data": {}}}'], LACKING),
        ([START, json.dumps({"job": "dtd10", "seconds": 1.0, "rows": [{"outside": "svhn"}]})], LACKING),
        ([START, json.dumps({"job": "dtd10", "seconds": 1.0, "rows": [{**row(0.5), "auroc": "high"}]})], LACKING),
        ([START.replace('"inside": "cifar10-test"', '"inside": 3'), JOB], "holds an invalid setting: .*inside must be"),
        ([START.replace('"inside"', '"extra": 1, "inside"'), JOB], "holds an invalid setting: .*got extra"),
    ],
)
def test_a_file_that_is_not_a_record_is_rejected(tmp_path, lines, message):
    (tmp_path / "table.jsonl").write_text("\n".join([*lines, ""]))
    with pytest.raises(ValueError, match=rf"table\.jsonl {message}"):
        read(tmp_path)
