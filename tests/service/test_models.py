"""The models of a state directory: created, opened, compared and deleted, each by itself."""

import pytest

from truing.service.changes import learning
from truing.service.models import Models, backup

from .batches import batch, bits, learn

OPTIONS = {"features": 5, "classes": 3}


@pytest.fixture
def models(tmp_path):
    models = Models(tmp_path / "state")
    yield models
    models.close()


def test_files_left_by_a_crash_are_removed(models):
    models.create("m", OPTIONS)
    models.close()
    (models.folder / ".n.sqlite3.draft").write_bytes(b"half")
    (models.folder / ".o.sqlite3.deleted").write_bytes(b"gone")
    (models.folder / "o.sqlite3-wal").write_bytes(b"a write-ahead log without its database")
    again = Models(models.folder)
    assert [model.name for model in again] == ["m"]
    assert again.create("o", OPTIONS)[0].running().contents.rows == 0
    assert not list(again.folder.glob(".*.sqlite3.*"))
    again.close()


def test_a_backup_of_models_in_use_holds_all_of_them(models, tmp_path):
    for name in ("a", "b"):
        models.create(name, OPTIONS)[0].running().submit(learning(batch(name))).result()
    assert backup(models.folder, tmp_path / "copy") == ["a", "b"]
    with pytest.raises(FileExistsError, match="copy must be a new or empty directory"):
        backup(models.folder, tmp_path / "copy")
    with pytest.raises(FileNotFoundError, match="must be a state directory with models"):
        backup(tmp_path / "copy" / "nowhere", tmp_path / "other")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "copy").iterdir()}
    assert modes == {0o600}  # Only the owner may read learned rows.
    copy = Models(tmp_path / "copy")
    for name in ("a", "b"):
        copied, own = (one.find(name).running().contents.detector for one in (copy, models))
        assert bits(copied) == bits(own)
    copy.close()


def test_a_damaged_model_does_not_stop_the_backup_of_the_others(tmp_path):
    models = Models(tmp_path / "state")
    for name in ("a", "b", "c"):
        learn(models.create(name, OPTIONS)[0].running(), "one")
    models.close()
    path = tmp_path / "state" / "b.sqlite3"
    path.write_bytes(path.read_bytes()[:8192] + bytes(8192) + path.read_bytes()[16384:])
    with pytest.raises(OSError, match=r"2 of 3 models were copied to .*; b\.sqlite3 is damaged"):
        backup(tmp_path / "state", tmp_path / "copy")
    assert sorted(copy.name for copy in (tmp_path / "copy").iterdir()) == ["a.sqlite3", "c.sqlite3"]
