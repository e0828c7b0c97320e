r"""Run two servers behind haproxy as in production for an hour, with all that happens in a week.

    python benchmarks/serve/production.py PACK OTHER --texts FILE [--minutes 60] [--load 0.7]

PACK and OTHER are two packs with the same languages; FILE holds one text per line. Two servers with
two workers each serve PACK behind haproxy, as deploy/haproxy.cfg has it; one that ends is started
again, as systemd does. First the rate at saturation is measured. Then requests of every path come
at --load times this rate, regardless of the answers to earlier ones, while

- a worker is killed every minute (SIGKILL), of one server after the other;
- every 7 minutes the pack is exchanged for the other one (a link, and SIGHUP);
- every 11 minutes the API key changes: first both keys hold, then the new one alone;
- half way, deploy/rolling_update.py restarts both servers.

Every answer is compared with what the packs give in this process. A client whose connection breaks,
or who is told to come later (429, 502, 503, 504), asks again, as `mirror_rt.Client` does, for up to
30 seconds; a request without a right answer then is lost. The private memory of all processes is
sampled; while a pack is exchanged both are loaded, so medians are compared, those of the second and
of the last quarter of the time. The results are written to
benchmarks/results/serve-production-DATE-MACHINE .json, .md and .png; the exit status is 1 if a
request is lost, a vector is wrong, an event fails, or memory grows by more than --limit megabytes.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from serve.cluster import Cluster
from serve.many_clients import Clients
from serve.mixed_requests import MixedRequests
from serve.report import Goal, add_output_options, goals, write_report

from mirror_rt import LanguagePack
from mirror_rt.io.tables import markdown_table

MINUTES = {"worker killed": 1.0, "pack exchanged": 7.0, "key changed": 11.0}
PERIOD = 2.0  # seconds between two samples of memory


class Week:
    """The events on the servers meanwhile, each at its own times.

    Attributes:
        happened: pairs of event and time, in seconds since the beginning.
        failed: the failures.
    """

    def __init__(self, cluster: Cluster, clients: Clients, seconds: float) -> None:
        self._cluster, self._clients, self._seconds = cluster, clients, seconds
        self.happened: list[tuple[str, float]] = []
        self.failed: list[str] = []
        self.memory: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._began = time.monotonic()
        # A worker is not killed while a server restarts: haproxy would have nobody else to ask.
        self._alone = threading.Lock()
        numbers = itertools.count()
        events: list[tuple[str, float, Callable[[], None]]] = [
            ("worker killed", MINUTES["worker killed"] * 60,
             lambda: cluster.kill_a_worker(next(numbers))),
            ("pack exchanged", MINUTES["pack exchanged"] * 60, cluster.exchange_pack),
            ("key changed", MINUTES["key changed"] * 60, self._change_key),
            ("rolling update", seconds / 2 + 30, cluster.update),
        ]  # fmt: skip
        self._threads = [threading.Thread(target=self._repeat, args=event) for event in events]
        self._threads.append(threading.Thread(target=self._sample))

    def __enter__(self) -> Week:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, name: str, every: float, event: Callable[[], None]) -> None:
        due = every
        # An event that begins late could not end in time.
        while due < self._seconds - 20 and not self._over.wait(
            max(0.0, self._began + due - time.monotonic())
        ):
            with self._alone:
                self.happened.append((name, time.monotonic() - self._began))
                try:
                    event()
                except Exception as error:  # noqa: BLE001 - part of the report
                    self.failed.append(f"{name}: {error!r}")
            print(f"{(time.monotonic() - self._began) / 60:5.1f} min: {name}", flush=True)
            due += every

    def _change_key(self) -> None:
        old, new = self._cluster.begin_key_change()
        self._clients.key = new
        time.sleep(5)  # those who have begun with the old one end
        self._cluster.end_key_change(old, new)

    def _sample(self) -> None:
        while not self._over.wait(PERIOD):
            self.memory.append((time.monotonic() - self._began, self._cluster.memory()))


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()[:512]
    packs = [LanguagePack.load(path, threads=1) for path in (arguments.pack, arguments.other)]
    requests = MixedRequests(packs, texts)
    with Cluster(folder, (arguments.pack, arguments.other)) as cluster:
        clients = Clients(cluster.port, cluster.key, requests)
        clients.run(None, 10)
        most = clients.run(None, arguments.seconds).rate
        print(f"saturation: {most:.0f} requests/s", flush=True)
        with Week(cluster, clients, arguments.minutes * 60) as week:
            found = clients.run(arguments.load * most, arguments.minutes * 60)
        complaints = cluster.complaints()
    times, megabytes = (np.array(column) for column in zip(*week.memory, strict=True))
    quarters = [float(np.median(part)) for part in np.array_split(megabytes, 4)]
    return {
        "minutes": arguments.minutes,
        "saturation": round(most, 1),
        "load": arguments.load,
        **found.figures(),
        "events": [[name, round(seconds, 1)] for name, seconds in week.happened],
        "failed_events": [*week.failed, *complaints],
        "growth_mb": round(quarters[3] - quarters[1], 2),
        "seconds": times.round(1).tolist(),
        "private_mb": megabytes.round(1).tolist(),
    }


def table(found: dict[str, Any], limit: float) -> list[str]:
    names = [name for name, _ in found["events"]]
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    rows = [
        Goal("requests without an answer", 0, len(found["lost"]),
             f"{found['requests']} were answered, at {found['load']:.0%} of "
             f"{found['saturation']:.0f} requests/s; {found['asked_again']} were asked again",
             most=True),
        Goal("wrong answers", 0, len(found["wrong"]), "every one was compared", most=True),
        Goal("events that failed", 0, len(found["failed_events"]), counted, most=True),
        Goal(f"growth of memory over {found['minutes']:g} minutes, MB", limit, found["growth_mb"],
             f"median {np.median(found['private_mb']):.0f} MB of both servers, at most "
             f"{max(found['private_mb']):.0f} MB while both packs are loaded", most=True),
    ]  # fmt: skip
    paths = [[path, str(row["requests"]), f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}"]
             for path, row in found["by_path"].items()]  # fmt: skip
    table = markdown_table(["path", "requests", "p50 ms", "p99 ms"], paths, numbers=True)
    return [*goals(rows), "", *table.splitlines()]


def plot(found: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True)
    for name in ("p50_ms", "p99_ms"):
        rows = [minute[name] for minute in found["by_minute"]]
        top.plot(np.arange(len(rows)) + 0.5, rows, label=name[:3])
    colours = {"worker killed": "#ddd", "pack exchanged": "tab:green", "key changed": "tab:orange",
               "rolling update": "tab:red"}  # fmt: skip
    for name, colour in colours.items():
        for i, seconds in enumerate(s for event, s in found["events"] if event == name):
            top.axvline(seconds / 60, color=colour, linewidth=1, zorder=0,
                        label=None if i else name)  # fmt: skip
    top.set(ylabel="ms", yscale="log", title=f"{found['requests']} requests, "
            f"{len(found['lost'])} lost, {len(found['wrong'])} wrong")  # fmt: skip
    top.legend(ncols=3, fontsize="small")
    bottom.plot(np.divide(found["seconds"], 60), found["private_mb"], linewidth=0.7)
    bottom.set(xlabel="minutes", ylabel="private MB of all processes", ylim=(0, None))
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--load", type=float, default=0.7, help="share of saturation")
    parser.add_argument("--seconds", type=float, default=20, help="to measure saturation for")
    parser.add_argument("--limit", type=float, default=20, metavar="MB")
    add_output_options(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments, Path(folder))
    stem = write_report("serve-production", found, table(found, arguments.limit), arguments)
    plot(found, stem.with_suffix(".png"))
    for name in ("lost", "wrong", "failed_events"):
        for line in found[name][:5]:
            print(f"{name}: {line}")
    bad = found["lost"] or found["wrong"] or found["failed_events"]
    return int(bool(bad) or found["growth_mb"] > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
