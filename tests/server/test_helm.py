"""The Helm chart, rendered by Helm's code: what its objects are, and how they fit together.

tests/run.sh installs helm-sdkpy, which is that code as a library, and the schemas of all kinds into
build/helm.
"""

import copy
import functools
import json
import operator
import os
import re
import subprocess
import sys

import pytest
import yaml

from mirror_rt import __version__
from mirror_rt.server.http.openapi import openapi_document
from mirror_rt.server.monitoring.metrics import Metrics
from paths import ROOT, TESTS

pytestmark = pytest.mark.full
CHART, PACKAGES = ROOT / "deploy/helm/mirror-rt", ROOT / "build/helm"
GUIDE = (ROOT / "docs/guides/kubernetes.md").read_text(encoding="utf-8")


def values_of(command):
    """What a `helm upgrade` sets, as Helm reads it."""
    values = {}
    for path, value in re.findall(r"[ ,]([\w.-]+)=([^,\s]*)", command):
        *keys, last = path.split(".")
        inner = functools.reduce(lambda each, key: each.setdefault(key, {}), keys, values)
        inner[last] = yaml.safe_load(value) if value else ""
    return values


OF_GUIDE, KSERVE_OF_GUIDE = map(
    values_of, re.findall(r"^helm upgrade .*?(?=^```)", GUIDE, re.DOTALL | re.MULTILINE)
)
COMMON = {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget"}
OF_KSERVE = {"ServingRuntime", "InferenceService", "ServiceAccount"}
KSERVE = {"enabled": True, "storageUri": "s3://models/bundle"}
FORMS = {
    "default": ({}, COMMON),
    "keda": ({"autoscaling": {"by": "keda"}, "podAnnotations": {"prometheus.io/scrape": "true"}},
             COMMON | {"ScaledObject"}),
    "tls": (
        {"tlsSecret": "mine", "podMonitor": {"enabled": True},
         "service": {"annotations": {"a": "b"}},
         "extraVolumes": [{"name": "more", "emptyDir": {}}],
         "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
         "ingress": {"enabled": True, "className": "nginx", "host": "a.example", "tlsSecret": "a",
                     "annotations": {"c": "d"}}},
        COMMON | {"PodMonitor", "Ingress"},
    ),
    "plain": (
        {"podMonitor": {"enabled": True}, "autoscaling": {"by": "hpa"}},
        COMMON | {"HorizontalPodAutoscaler", "PodMonitor"},
    ),
    "bare": (
        {"autoscaling": {"by": "none"}, "podDisruptionBudget": {"enabled": False},
         "serviceAccount": {"create": False}, "keysSecret": "", "modelsClaim": "",
         "serve": {"source": "all-MiniLM-L6-v2"}},
        {"Deployment", "Service"},
    ),
    "kserve": ({"kserve": KSERVE}, OF_KSERVE),
    "the guide's": (OF_GUIDE, COMMON),
    "the guide's kserve": (KSERVE_OF_GUIDE, OF_KSERVE),
    "scheduled": (
        {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
         "imagePullSecrets": [{"name": "pull"}], "env": [{"name": "HF_HOME", "value": "/tmp"}],
         "resources": {"limits": {"nvidia.com/gpu": 1}},
         "affinity": {"podAntiAffinity": {}}},
        COMMON,
    ),
}  # fmt: skip
OPTIONS = {
    "serve": {"max-body-bytes": 33554432, "max-wait": 0.5, "model-name": "mine"},
    "autoscaling": {"by": "keda"},
    "podMonitor": {"enabled": True},
}
WRONG = {
    "replicas": {"replicas": 2},
    "by": {"autoscaling": {"by": "cpu"}},
    "podMonitor.enabled=true": {"autoscaling": {"by": "hpa"}},
    "drain": {"serve": {"drain": "soon"}},
    "MAX": {"serve": {"MAX": 1}},
    "storageUri": {"kserve": {"enabled": True}},
}


MANIFESTS = ROOT / "deploy/kubernetes/mirror-rt.yaml"
# What Helm adds to objects, which those that kubectl applies have not.
OF_HELM = {"app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"}
# By kind: a place for a field that its schema does not know.
PLACES = {
    "Deployment": ("template", "spec", "containers", 0),
    "HorizontalPodAutoscaler": ("metrics", 0, "pods"),
    "PodDisruptionBudget": (),
    "Service": ("ports", 0),
    "Ingress": ("rules", 0),
    "PodMonitor": ("podMetricsEndpoints", 0),
    "ScaledObject": ("triggers", 0),
    "ServingRuntime": ("supportedModelFormats", 0),
    "InferenceService": ("predictor", "model"),
}
# And a field with a value that it must not have.
VALUES = {
    "PodMonitor": ("podMetricsEndpoints", {}),
    "ScaledObject": ("pollingInterval", "5"),
    "ServingRuntime": ("containers", [{"image": "it has no name"}]),
    "InferenceService": ("predictor", {"minReplicas": "2"}),
}


def answer_of(script, folder, asked, *arguments):
    """What a script of tests/support answers with the packages of build/helm, in JSON."""
    done = subprocess.run(
        [sys.executable, TESTS / "support" / "servers" / script, *arguments],
        input=json.dumps(asked), capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(PACKAGES), "HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """From the name of a form to its objects by kind, or to Helm's error."""
    values = {name: values for name, (values, _) in FORMS.items()} | WRONG | {"options": OPTIONS}
    forms = {name: ("mirror-rt" if name == "plain" else "mine", of) for name, of in values.items()}
    return answer_of("render_chart.py", tmp_path_factory.mktemp("home"), forms, CHART)


class Dumper(yaml.SafeDumper):
    """Writes what is there twice twice."""

    def ignore_aliases(self, data):
        return True


def pod_of(objects):
    """The pod of the deployment or the runtime, its one container, and its variables."""
    if "Deployment" in objects:
        pod = objects["Deployment"]["spec"]["template"]["spec"]
    else:
        pod = objects["ServingRuntime"]["spec"]
    (container,) = pod["containers"]
    return pod, container, {each["name"]: each["value"] for each in container["env"]}


def test_the_chart_has_nothing_to_lint(rendered):
    """But that it has no icon, which is information (1)."""
    lint = rendered["lint"]
    assert (lint["Errors"], [one["Severity"] for one in lint["Messages"]]) == (None, [1])


@pytest.mark.parametrize("form", FORMS)
def test_the_objects(rendered, form):
    assert set(rendered[form]) == FORMS[form][1], rendered[form]
    for each in rendered[form].values():
        name = "mirror-rt" if form == "plain" else "mine-mirror-rt"
        assert each["metadata"]["name"] == name


def test_the_schemas(rendered, tmp_path):
    """They are content with all objects of all forms, and with none that is spoiled."""
    objects = [each for form in [*FORMS, "options"] for each in rendered[form].values()]
    by_kind, spoiled = {each["kind"]: each for each in objects}, []
    for kind, keys in PLACES.items():
        spoiled.append(copy.deepcopy(by_kind[kind]))
        functools.reduce(operator.getitem, keys, spoiled[-1]["spec"])["unknown"] = 1
    for kind, (name, value) in VALUES.items():
        spoiled.append(copy.deepcopy(by_kind[kind]))
        spoiled[-1]["spec"][name] = value
    assert by_kind.keys() == PLACES.keys() | {"ServiceAccount"}
    wrong = answer_of("kubernetes_schemas.py", tmp_path, objects + spoiled)
    assert wrong[: len(objects)] == [None] * len(objects)
    refused = zip([*PLACES, *VALUES], wrong[len(objects) :], strict=True)
    assert [kind for kind, why in refused if why is None] == []


def test_the_plain_manifests(rendered):
    """They are the chart with an autoscaler and a PodMonitor, without what is Helm's own."""
    objects = copy.deepcopy(rendered["plain"])
    for each in objects.values():
        for name in ("annotations", "namespace"):
            each["metadata"].pop(name)
        for metadata in (each["metadata"], each.get("spec", {}).get("template", each)["metadata"]):
            metadata["labels"] = {
                name: label for name, label in metadata["labels"].items() if name not in OF_HELM
            }
    head, made = "# Made from deploy/helm/mirror-rt by tests/server/test_helm.py.\n", ROOT / "build"
    text = yaml.dump_all(
        [objects[kind] for kind in sorted(objects)],
        Dumper=Dumper, sort_keys=False, default_flow_style=None, width=110,
    )  # fmt: skip
    (made / MANIFESTS.name).write_text(head + text)
    said = f"the chart is another: cp build/{MANIFESTS.name} deploy/kubernetes/"
    assert MANIFESTS.read_text() == head + text, said


@pytest.mark.parametrize("form", FORMS)
def test_the_container(rendered, serve_variables, form):
    """Its variables are options, its mounts volumes, and its probes paths of the server."""
    pod, container, variables = pod_of(rendered[form])
    assert {name for name in variables if name.startswith("MIRROR_RT_SERVE_")} <= serve_variables
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    paths = openapi_document()["paths"]
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[kind]["httpGet"]
        assert "get" in paths[probe["path"]]
        assert probe["port"] == container["ports"][0]["containerPort"]
        assert probe["scheme"] == ("HTTPS" if form == "tls" else "HTTP")
    modes = {each["secret"].get("defaultMode") for each in pod["volumes"] if "secret" in each}
    assert modes <= ({0o400} if "securityContext" in pod else {None})  # whose group may read them
    assert container["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.parametrize("form", [form for form in FORMS if "Deployment" in FORMS[form][1]])
def test_the_deployment(rendered, form):
    """Its pods have time to drain, and are those that the other objects mean."""
    objects = rendered[form]
    pod, container, variables = pod_of(objects)
    assert pod["terminationGracePeriodSeconds"] >= int(variables["MIRROR_RT_SERVE_DRAIN"]) + 15
    selector = objects["Service"]["spec"]["selector"]
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind in {"PodDisruptionBudget", "PodMonitor", "Deployment"} & objects.keys():
        found = objects[kind]["spec"]["selector"]["matchLabels"]
        assert found.items() == selector.items() <= labels.items()
    (port,), (offered,) = container["ports"], objects["Service"]["spec"]["ports"]
    assert offered["targetPort"] == port["name"]
    if "PodMonitor" in objects:
        (endpoint,) = objects["PodMonitor"]["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == port["name"]
        assert endpoint.get("scheme", "http") == offered["appProtocol"]
        assert "get" in openapi_document()["paths"][endpoint["path"]]
    if "Ingress" in objects:
        (rule,) = objects["Ingress"]["spec"]["rules"]
        service = rule["http"]["paths"][0]["backend"]["service"]
        name = objects["Service"]["metadata"]["name"]
        assert service == {"name": name, "port": {"name": offered["name"]}}
    (spread,) = objects["Deployment"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == selector
    scalers = {"HorizontalPodAutoscaler", "ScaledObject"} & objects.keys()
    for kind in scalers:
        target = objects[kind]["spec"]["scaleTargetRef"]
        name = objects["Deployment"]["metadata"]["name"]
        assert (target["kind"], target["name"]) == ("Deployment", name)
    assert ("replicas" in objects["Deployment"]["spec"]) == (not scalers)


def test_kserve(rendered):
    """The service names the runtime, which serves what KServe has fetched."""
    objects = rendered["kserve"]
    runtime, container, variables = pod_of(objects)
    assert set(runtime) == {"supportedModelFormats", "protocolVersions", "volumes", "containers"}
    assert (container["name"], variables["MIRROR_RT_SERVE_SOURCE"]) == (
        "kserve-container", "/mnt/models",
    )  # fmt: skip
    predictor = objects["InferenceService"]["spec"]["predictor"]
    assert predictor["model"]["runtime"] == objects["ServingRuntime"]["metadata"]["name"]
    (known,) = runtime["supportedModelFormats"]
    assert predictor["model"]["modelFormat"] == {"name": known["name"]}
    assert predictor["model"]["storageUri"] == KSERVE["storageUri"]


def test_options_and_metrics(rendered):
    """Numbers are written in full; KEDA asks for a metric that the server has."""
    objects = rendered["options"]
    _, _, variables = pod_of(objects)
    assert variables["MIRROR_RT_SERVE_MAX_BODY_BYTES"] == "33554432"
    assert variables["MIRROR_RT_SERVE_MAX_WAIT"] == "0.5"
    assert variables["MIRROR_RT_SERVE_MODEL_NAME"] == "mine"
    (trigger,) = objects["ScaledObject"]["spec"]["triggers"]
    metric = re.search(r"mirror_rt_\w+", trigger["metadata"]["query"])
    assert metric[0] in {one.name for one in Metrics().registry.collect()}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


@pytest.mark.parametrize("named", WRONG)
def test_wrong_values_are_refused(rendered, named):
    assert isinstance(rendered[named], str), rendered[named]
    assert named in rendered[named]


def test_the_version_is_that_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__
