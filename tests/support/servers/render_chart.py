"""Install a chart with many values where no cluster is, and keep what Helm sends.

Called as `python render_chart.py CHART` in a process of its own, because Helm's library brings Go's
run time. It reads {name: [release, values]} as JSON, and writes {name: {kind: object}, or Helm's
error}.
"""

import asyncio
import http.server
import json
import sys
import threading
from typing import ClassVar

import helm_sdkpy
import yaml

KUBERNETES = "1.31"
# The kinds that the server knows, by their API.
APIS = {
    "v1": ["Secret", "Service", "ServiceAccount"],
    "apps/v1": ["Deployment"],
    "autoscaling/v2": ["HorizontalPodAutoscaler"],
    "networking.k8s.io/v1": ["Ingress"],
    "policy/v1": ["PodDisruptionBudget"],
    "keda.sh/v1alpha1": ["ScaledObject"],
    "monitoring.coreos.com/v1": ["PodMonitor"],
    "serving.kserve.io/v1alpha1": ["ServingRuntime"],
    "serving.kserve.io/v1beta1": ["InferenceService"],
}


class Cluster(http.server.BaseHTTPRequestHandler):
    """As much of Kubernetes' API as an installation asks for; what is made is kept in `made`."""

    protocol_version = "HTTP/1.1"
    made: ClassVar[list] = []

    def do_GET(self):
        path = self.path.split("?")[0].strip("/")
        if path == "version":
            major, minor = KUBERNETES.split(".")
            version = {"major": major, "minor": minor, "gitVersion": f"v{KUBERNETES}.0"}
            self._answer(200, version)
        elif path == "api":
            self._answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path == "apis":
            groups = [_group(api) for api in APIS if api != "v1"]
            self._answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif (api := path.removeprefix("apis/").removeprefix("api/")) in APIS:
            found = [_resource(kind) for kind in APIS[api]]
            self._answer(200, {"kind": "APIResourceList", "groupVersion": api, "resources": found})
        elif path.endswith("secrets"):
            self._answer(200, {"kind": "SecretList", "apiVersion": "v1", "items": []})
        else:
            self._answer(404, {"kind": "Status", "status": "Failure", "reason": "NotFound"})

    def do_POST(self):
        data = self.rfile.read(int(self.headers["content-length"]))
        kind = self.headers["content-type"]
        if kind == "application/json":  # else it is the secret in which Helm keeps the release
            self.made.append(json.loads(data))
        self._send(201, kind, data)

    def do_PUT(self):
        self.do_POST()

    def _answer(self, status, content):
        self._send(status, "application/json", json.dumps(content).encode())

    def _send(self, status, kind, data):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def _group(api):
    group, version = api.split("/")
    versions = {"groupVersion": api, "version": version}
    return {"name": group, "versions": [versions], "preferredVersion": versions}


def _resource(kind):
    verbs = ["create", "get", "list", "patch", "update"]
    names = f"{kind.lower()}s"
    return {"name": names, "singularName": "", "namespaced": True, "kind": kind, "verbs": verbs}


def install(helm, chart, release, values):
    """Return the objects that Helm makes, by kind, or its error."""
    Cluster.made.clear()
    try:
        asyncio.run(helm.run(release, chart, values=values, wait=False))
    except helm_sdkpy.HelmError as error:
        return str(error)
    by_kind = {each["kind"]: each for each in Cluster.made}
    assert len(by_kind) == len(Cluster.made)
    return by_kind


def main(chart):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cluster)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "users": [{"name": "me", "user": {}}],
    }  # fmt: skip
    config = helm_sdkpy.Configuration("here", yaml.safe_dump(config))
    helm, forms = helm_sdkpy.Install(config), json.load(sys.stdin)
    made = {name: install(helm, chart, *form) for name, form in forms.items()}
    made["lint"] = asyncio.run(helm_sdkpy.Lint(config).run(chart))
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
