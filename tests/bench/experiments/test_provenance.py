import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from truing.bench.experiments.provenance import check_one_network, facts, network_of


def made_by(network="resnet20", digest="ab" * 32):
    return {"made": {"network": network, "classes": 10, "weights": "w.pt", "weights_sha256": digest}}


def test_the_facts_of_a_file_are_counted_from_its_rows(tmp_path, rng):
    logits, labels = rng.normal(size=(50, 4)), rng.integers(4, size=50)
    np.savez(tmp_path / "a.npz", features=rng.normal(size=(50, 3)), logits=logits, labels=labels)
    found = facts(tmp_path / "a.npz")
    right = sum(
        max(range(4), key=line.__getitem__) == label for line, label in zip(logits.tolist(), labels, strict=True)
    )
    assert (found["rows"], found["features"], found["classes"], found["made"]) == (50, 3, 4, None)
    assert found["accuracy"] == right / 50


def test_the_note_of_a_file_is_read_and_nonsense_is_named(tmp_path):
    rows = {"features": np.ones((2, 3))}
    note = np.frombuffer(json.dumps(made_by()["made"]).encode(), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", **rows, provenance=note)
    assert network_of(facts(tmp_path / "a.npz")).startswith("resnet20, 10 classes, weights w.pt")
    for text in (b"{no json", b"[1]"):
        np.savez(tmp_path / "b.npz", **rows, provenance=np.frombuffer(text, dtype=np.uint8))
        with pytest.raises(ValueError, match=r"b\.npz must hold its provenance as"):
            facts(tmp_path / "b.npz")


@given(
    networks=st.lists(st.sampled_from([None, ("resnet20", "ab"), ("resnet20", "cd"), ("wrn40-2", "ab")]), max_size=5)
)
def test_files_of_two_networks_or_two_checkpoints_are_refused_and_silent_ones_are_not(networks):
    files = {
        f"set{number}": {"made": None} if said is None else made_by(said[0], said[1] * 32)
        for number, said in enumerate(networks)
    }
    if len(set(networks) - {None}) > 1:
        with pytest.raises(ValueError, match="must come from the network of set"):
            check_one_network(files)
    else:
        check_one_network(files)
