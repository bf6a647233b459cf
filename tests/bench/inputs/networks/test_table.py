import subprocess
import sys

import numpy as np
import pytest
import torch

from truing.bench.inputs.networks.table import NETWORKS

every_network = pytest.mark.parametrize("name", NETWORKS)


def test_importing_the_table_does_not_import_torch():
    code = (
        "import sys, truing.bench.inputs.networks.table, truing.bench.cli; print({'torch', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@every_network
def test_every_network_has_the_requested_number_of_classes(name, rng):
    if name.startswith("efficientnet"):
        pytest.importorskip("efficientnet_lite_pytorch")
    entry = NETWORKS[name]
    network = entry.build(entry.classes + 1).eval()
    images = torch.from_numpy(rng.normal(size=(1, 3, 32, 32)).astype(np.float32))
    with torch.inference_mode():
        assert network(images).shape == (1, entry.classes + 1)
