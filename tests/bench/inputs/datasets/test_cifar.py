import pytest

from truing.bench.inputs.datasets.cifar import cifar10_train


@pytest.mark.parametrize("folder", ["cifar-10-batches-py", "cifar-10-batches-bin"])
def test_the_pickled_version_is_rejected_without_opening_it(folder, tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(FileNotFoundError, match="never loaded: get the binary version"):
        cifar10_train(tmp_path / folder)
