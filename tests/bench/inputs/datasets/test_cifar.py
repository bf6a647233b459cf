import pytest

from truing.bench.inputs.datasets.cifar import cifar10_test, cifar10_train


@pytest.mark.parametrize("folder", ["cifar-10-batches-py", "cifar-10-batches-bin"])
def test_the_pickled_version_is_rejected_without_opening_it(folder, tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(FileNotFoundError, match="never loaded: get the binary version"):
        cifar10_train(tmp_path / folder)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*test_batch\.bin$"):
        cifar10_test(tmp_path)


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_an_incomplete_file_is_rejected(size, tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"\x01" * size)
    with pytest.raises(ValueError, match=r"test_batch\.bin must contain records of 3073 bytes, got .* bytes"):
        cifar10_test(tmp_path)


def test_a_label_out_of_range_is_rejected(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"\x0b" + bytes(3072))
    with pytest.raises(ValueError, match="must contain labels below 10, got 11"):
        cifar10_test(tmp_path)
