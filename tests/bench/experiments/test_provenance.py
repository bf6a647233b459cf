import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from truing.bench.experiments.provenance import check_one_network, describe_file, network_of


def info_of(network="resnet20", digest="ab" * 32):
    return {"made": {"network": network, "classes": 10, "weights": "w.pt", "weights_sha256": digest}}


def test_the_description_of_a_file_counts_its_rows_and_its_correct_labels(tmp_path, rng):
    logits, labels = rng.normal(size=(50, 4)), rng.integers(4, size=50)
    np.savez(tmp_path / "a.npz", features=rng.normal(size=(50, 3)), logits=logits, labels=labels)
    info = describe_file(tmp_path / "a.npz")
    right = sum(
        max(range(4), key=line.__getitem__) == label for line, label in zip(logits.tolist(), labels, strict=True)
    )
    assert (info["rows"], info["features"], info["classes"], info["made"]) == (50, 3, 4, None)
    assert info["accuracy"] == right / 50


def test_a_note_names_the_network_and_an_invalid_note_is_rejected(tmp_path):
    rows = {"features": np.ones((2, 3))}
    note = np.frombuffer(json.dumps(info_of()["made"]).encode(), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", **rows, provenance=note)
    assert network_of(describe_file(tmp_path / "a.npz")).startswith("resnet20, 10 classes, weights w.pt")
    for text in (b"{no json", b"[1]"):
        np.savez(tmp_path / "b.npz", **rows, provenance=np.frombuffer(text, dtype=np.uint8))
        with pytest.raises(ValueError, match=r"b\.npz must contain its provenance as"):
            describe_file(tmp_path / "b.npz")


@given(
    networks=st.lists(st.sampled_from([None, ("resnet20", "ab"), ("resnet20", "cd"), ("wrn40-2", "ab")]), max_size=5)
)
def test_files_of_two_networks_or_two_checkpoints_are_rejected_and_files_without_a_note_are_not(networks):
    files = {
        f"set{number}": {"made": None} if named is None else info_of(named[0], named[1] * 32)
        for number, named in enumerate(networks)
    }
    if len(set(networks) - {None}) > 1:
        with pytest.raises(ValueError, match="must come from the network of set"):
            check_one_network(files)
    else:
        check_one_network(files)
