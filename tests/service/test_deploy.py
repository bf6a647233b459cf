"""The files in deploy/ are valid and agree with the service. test_nginx.py tests the nginx configuration."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from ..conftest import ROOT
from . import running

parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client: pip install '.[serve]'")
yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install '.[dev]'")
DEPLOY = ROOT / "deploy"
BOARD = json.loads((DEPLOY / "grafana.json").read_text())
RULES = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [*QUERIES, *(rule["expr"] for rule in RULES)]
OF_PROMETHEUS = {"instance"}  # Prometheus adds this label to every sample.


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    """The labels of the samples of a service that has learned a batch and answered a request, by name."""
    with running.serving(tmp_path_factory.mktemp("labels") / "state", "--method", "dlr") as service:
        model = running.Model(service, method="dlr", drift_alarm=0.01)
        model.calibrate(running.batch(60))
        model.infer(running.batch(20))
        text = service.client.get("/metrics").text
    samples: dict[str, set[str]] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def run(program: str, *words: object, **options) -> subprocess.CompletedProcess[str]:
    """Run a program, or skip the test if the program is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    command = [program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_every_query_uses_metrics_and_labels_of_the_service(labels, query):
    plain = re.sub(r'"[^"]*"', '""', query)  # Values of labels may contain braces.
    grouped = {label for text in re.findall(r"by \((.*?)\)", plain) for label in text.split(", ")}
    metrics = re.findall(r"(truing_\w+)(?:\{(.*?)\})?", plain)
    assert metrics
    for name, selector in metrics:
        assert {*re.findall(r"\w+", selector), *grouped} <= labels[name] | OF_PROMETHEUS, name


def test_the_pod_mounts_every_volume_and_the_token_where_the_image_reads_it():
    _, stateful_set = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod, claims = stateful_set["spec"]["template"]["spec"], stateful_set["spec"]["volumeClaimTemplates"]
    [container] = pod["containers"]
    paths = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(paths) == {one["name"] for one in pod["volumes"]} | {claim["metadata"]["name"] for claim in claims}
    assert f'"--token-file", "{paths["token"]}/token"' in (DEPLOY / "Dockerfile").read_text()


def test_systemd_accepts_the_unit_and_finds_it_well_protected(tmp_path):
    unit = tmp_path / "truing.service"
    unit.write_text((DEPLOY / unit.name).read_text().replace("/opt/truing/bin/truing", sys.executable))
    done = run("systemd-analyze", "verify", unit)
    assert "truing.service" not in done.stderr
    assert run("systemd-analyze", "security", "--offline=true", "--threshold=20", unit).returncode == 0
