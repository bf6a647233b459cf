"""Whatever happens to a file of ours, it is never read as something else."""

import functools
import hashlib
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing.io import seal

ROWS = np.random.default_rng(5)
OUTPUTS = truing.Outputs(
    ROWS.normal(size=(7, 4)).astype(np.float32), ROWS.normal(size=(7, 3)), ROWS.integers(0, 3, 7), ROWS.normal(size=7)
)


def detector() -> truing.Detector:
    found = truing.Detector("energy")
    found.learn(OUTPUTS)
    found.calibrate(OUTPUTS[:5])
    return found


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], object]]] = {
    **dict.fromkeys(("x.npz", "x.parquet", "x.arrow", "x.feather"), (OUTPUTS.save, truing.Outputs.load)),
    "fit.npz": (lambda path: truing.save(truing.fit_direct(OUTPUTS.features, OUTPUTS.scores), path), truing.load),
    "detector.npz": (lambda path: truing.save(detector(), path), truing.load),
}
every_kind = pytest.mark.parametrize("name", KINDS)
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@functools.cache
def written(name: str) -> bytes:
    if name.endswith((".parquet", ".arrow", ".feather")):
        pytest.importorskip("pyarrow")
    with TemporaryDirectory() as folder:
        KINDS[name][0](Path(folder) / name)
        return (Path(folder) / name).read_bytes()


def assert_refused(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)
    with pytest.raises((ValueError, OSError)) as caught:
        KINDS[path.name][1](path)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


@every_kind
@settings(in_one_folder, max_examples=100)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused(tmp_path, name, where, bit):
    contents = bytearray(written(name))
    contents[int(where * len(contents))] ^= 1 << bit
    assert_refused(tmp_path / name, contents)


@every_kind
@settings(in_one_folder, max_examples=80)
@given(where=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_is_refused(tmp_path, name, where):
    contents = written(name)
    assert_refused(tmp_path / name, contents[: int(where * len(contents))])


@every_kind
@settings(in_one_folder, max_examples=60)
@given(where=st.floats(0, 1), junk=st.binary(min_size=1, max_size=40))
def test_bytes_put_in_are_refused(tmp_path, name, where, junk):
    contents = written(name)
    place = int(where * len(contents))
    assert_refused(tmp_path / name, contents[:place] + junk + contents[place:])


@pytest.mark.slow
@every_kind
def test_every_flipped_bit_and_every_cut_is_refused(tmp_path, name):
    contents = written(name)
    for place in range(len(contents)):
        assert_refused(tmp_path / name, contents[:place])
        for bit in range(8):
            damaged = bytearray(contents)
            damaged[place] ^= 1 << bit
            assert_refused(tmp_path / name, damaged)


@every_kind
def test_the_seal_is_the_sum_of_all_else_in_the_file(name):
    contents = written(name)
    (sealed,) = re.finditer(b"truing-sha256:([0-9a-f]{64}):truing-sealed", contents)
    others = contents[: sealed.start(1)] + contents[sealed.end(1) :]
    assert hashlib.sha256(others).hexdigest() == sealed[1].decode()


def test_a_file_that_another_program_wrote_anew_is_read_as_any_of_its_own(tmp_path):
    OUTPUTS.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        np.savez(tmp_path / "x.npz", **{**file, "scores": file["scores"] + 1})
    np.testing.assert_array_equal(truing.Outputs.load(tmp_path / "x.npz").scores, OUTPUTS.scores + 1)
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    OUTPUTS.save(tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet")
    parquet.write_table(table.slice(2), tmp_path / "x.parquet")
    np.testing.assert_array_equal(truing.Outputs.load(tmp_path / "x.parquet").logits, OUTPUTS.logits[2:])
    OUTPUTS.save(tmp_path / "x.arrow")
    with pyarrow.OSFile(str(tmp_path / "x.arrow")) as file:
        table = pyarrow.ipc.open_file(file).read_all()
    feather.write_feather(table.slice(3), str(tmp_path / "x.feather"), compression="uncompressed")
    np.testing.assert_array_equal(truing.Outputs.load(tmp_path / "x.feather").labels, OUTPUTS.labels[3:])


def test_pages_of_parquet_carry_checksums_that_are_verified(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    # Another's file, without a seal: its pages' own checksums are all there is.
    table = pyarrow.table({"features": pyarrow.array(np.arange(64.0).reshape(32, 2).tolist())})
    parquet.write_table(
        table, tmp_path / "x.parquet", write_page_checksum=True, compression="none", use_dictionary=False
    )
    contents = bytearray((tmp_path / "x.parquet").read_bytes())
    contents[contents.index(np.float64(37.0).tobytes())] ^= 1
    (tmp_path / "x.parquet").write_bytes(contents)
    with pytest.raises(ValueError, match="CRC checksum verification failed"):
        truing.Outputs.load(tmp_path / "x.parquet")


def sealed_tail() -> bytes:
    with TemporaryDirectory() as folder:
        OUTPUTS.save(Path(folder) / "x.npz")
        return (Path(folder) / "x.npz").read_bytes()[-400:]


WORDS = [seal.BEFORE, seal.AFTER, seal.BLANK, b"0" * 64, b"PK\x05\x06", b"PAR1", b"ARROW1", sealed_tail()]


def check_words(tmp_path, name, words, where):
    if name != "x.npz":
        pytest.importorskip("pyarrow")
    text = b"".join(words)
    labels = np.frombuffer(text + bytes(-len(text) % 8), dtype=np.int64)
    truing.Outputs(np.ones((len(labels), 2)), labels=labels).save(tmp_path / name)
    np.testing.assert_array_equal(truing.Outputs.load(tmp_path / name).labels, labels)
    contents = bytearray((tmp_path / name).read_bytes())
    contents[int(where * len(contents))] ^= 1
    assert_refused(tmp_path / name, contents)


files_of_outputs = pytest.mark.parametrize("name", ["x.npz", "x.parquet", "x.arrow", "x.feather"])
words_of_a_seal = given(
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5), where=st.floats(0, 1, exclude_max=True)
)


@files_of_outputs
@settings(in_one_folder, max_examples=25)
@words_of_a_seal
def test_a_file_that_holds_the_words_of_a_seal_is_read_and_its_damage_is_seen(tmp_path, name, words, where):
    check_words(tmp_path, name, words, where)


@pytest.mark.slow
@files_of_outputs
@settings(in_one_folder, max_examples=500)
@words_of_a_seal
def test_hundreds_of_files_that_hold_the_words_of_a_seal_are_read_and_their_damage_is_seen(
    tmp_path, name, words, where
):
    check_words(tmp_path, name, words, where)


@settings(in_one_folder, max_examples=40)
@given(words=st.lists(st.sampled_from([seal.BEFORE, seal.AFTER, seal.BLANK]), min_size=1, max_size=4))
def test_a_saved_name_may_hold_the_words_of_a_seal(tmp_path, words):
    model = b"".join(words).decode()
    truing.save(truing.Detector(model=model), tmp_path / "detector.npz")
    assert truing.load(tmp_path / "detector.npz").settings.model == model


def test_a_part_that_is_changed_in_place_is_refused_as_damage(tmp_path):
    OUTPUTS.save(tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:  # As zip tools do, it keeps the comment.
        archive.writestr("more.npy", b"")
    with pytest.raises(ValueError, match=r"x\.npz is damaged: its checksum does not match its contents"):
        truing.Outputs.load(tmp_path / "x.npz")
