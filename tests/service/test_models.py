"""The models of a state directory: created, opened, compared and deleted, each by itself."""

import asyncio
import time

import httpx
import pytest

from truing.decisions.thresholds import Rate
from truing.service.app import create_app
from truing.service.changes import Change, learning
from truing.service.engine import Unavailable
from truing.service.history import History
from truing.service.metrics import Metrics
from truing.service.models import Models, backup
from truing.service.security import Access, Limits

from .batches import batch, bits, learn, opened

OPTIONS = {"features": 5, "classes": 3}


@pytest.fixture
def models(tmp_path):
    models = Models(tmp_path / "state")
    yield models
    models.close()


def reopened(models: Models) -> Models:
    models.close()
    return Models(models.folder)


def test_a_model_is_the_same_after_a_restart(models):
    engine = models.create("m", OPTIONS | {"window": 50}, Rate("fdr", 0.2))[0].running()
    engine.submit(learning(batch("a"))).result()
    before = bits(engine.contents.detector)
    with pytest.raises(BlockingIOError, match="in use by another process"):
        Models(models.folder)
    again = reopened(models)
    contents = again.find("m").running().contents
    assert bits(contents.detector) == before
    assert (contents.rate.name, contents.rate.value, contents.sequence) == ("fdr", 0.2, 2)
    again.close()


def test_an_invalid_model_leaves_no_file(models):
    before = sorted(models.folder.iterdir())
    for name, options in (("m", {}), ("m", OPTIONS | {"keep": 7}), ("../m", OPTIONS), (".m", OPTIONS)):
        with pytest.raises(ValueError, match="must"):
            models.create(name, options)
    assert (sorted(models.folder.iterdir()), len(models)) == (before, 0)


def test_a_damaged_database_is_reported_without_its_directory_and_can_be_deleted(models):
    for name in ("broken", "whole"):
        models.create(name, OPTIONS)[0].running().submit(learning(batch(name))).result()
    models.close()
    path = models.folder / "broken.sqlite3"
    path.write_bytes(path.read_bytes()[:5000])
    again = Models(models.folder)
    broken, whole = again
    assert (broken.name, whole.problem, again.problem) == ("broken", "", "")
    assert broken.problem.startswith("broken.sqlite3")
    with pytest.raises(Unavailable, match=r"model broken cannot be used: broken\.sqlite3"):
        broken.running()
    again.delete("whole")
    assert again.problem.startswith("broken: broken.sqlite3")
    again.delete("broken")
    assert again.problem == ""
    again.close()
    assert [path.name for path in models.folder.iterdir()] == [".lock"]


def test_files_that_a_crash_left_behind_are_removed_and_do_not_come_back(models):
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
    with pytest.raises(FileExistsError, match="copy must be empty"):
        backup(models.folder, tmp_path / "copy")
    with pytest.raises(FileNotFoundError, match="must be a state directory with models, got none"):
        backup(tmp_path / "copy" / "nowhere", tmp_path / "other")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "copy").iterdir()}
    assert modes == {0o600}  # As the databases themselves: learned rows are nobody else's business.
    copy = Models(tmp_path / "copy")
    for name in ("a", "b"):
        copied, own = (one.find(name).running().contents.detector for one in (copy, models))
        assert bits(copied) == bits(own)
    copy.close()


def test_nothing_is_kept_of_a_deleted_model(tmp_path):
    histories: dict[str, History] = {}

    def listeners(name: str) -> list:
        histories[name] = History()
        return [metrics.listener(name), histories[name].record]

    def forget(name: str) -> None:
        del histories[name]
        metrics.forget(name)

    metrics, models = Metrics(), Models(tmp_path, listeners=listeners, on_delete=forget)
    metrics.observe(models, histories)
    app = create_app(models, metrics, access=Access(), limits=Limits(), histories=histories)

    async def run() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for number in range(3):
                assert (await client.put(f"/models/m{number}", json=OPTIONS)).status_code == 201
                assert (await client.delete(f"/models/m{number}")).status_code == 200

    asyncio.run(run())
    assert histories == {}
    assert b'model="m' not in metrics.text()
    models.close()


def test_moments_since_a_state_before_a_reset_are_gone_even_if_its_snapshot_is_kept(tmp_path, monkeypatch):
    engine, hour = opened(tmp_path), 3600.0
    learn(engine, "a")
    monkeypatch.setattr(time, "time", lambda: 10 * hour)
    kept = engine.snapshot().result()
    engine.submit(Change("reset")).result()
    monkeypatch.setattr(time, "time", lambda: 20 * hour)
    for name in ("b", "c", "d"):
        learn(engine, name)
        engine.snapshot().result()
    assert kept in engine.store.snapshots()
    with pytest.raises(LookupError):
        engine.store.before(kept.sequence)
    assert engine.store.at(kept.sequence).rows == kept.rows == 6
    engine.close()


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
