"""Metrics for Prometheus: scraped over HTTP while a run goes, and gone when it ends."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stagepipe import Pipeline, UsageError
from tests.support.kills import kill, until
from tests.support.paths import ROOT
from tests.support.pipelines import batch, pipeline, stage

pytestmark = pytest.mark.timeout(90)

CONFIG = pipeline(
    stage("image", with_={"size": 100}, workers=2),
    stage("same", fuse=True),
    batch(4),
    source=200,
    report={"prometheus": "127.0.0.1:0"},
)


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        return response.read().decode()


def parse(text: str) -> dict[tuple, float]:
    return {
        (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "pipeline")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def count_messages(values: dict[tuple, float]) -> list[float]:
    """The messages of each hop, in the order of the hops."""
    counts: dict[tuple, float] = {}
    for (name, *labels), value in values.items():
        if name == "stagepipe_hop_messages_total":
            counts[tuple(labels[:2])] = counts.get(tuple(labels[:2]), 0) + value
    return list(counts.values())


def port_of(running: Pipeline) -> int:
    return running._run._metrics_server.port


def test_a_scrape_has_the_counts_of_the_run():
    with Pipeline(CONFIG) as running:
        for index, item in enumerate(running):
            del item
            if index == 20:
                kill(running, 1)
        port = port_of(running)
        sent = ("stagepipe_hop_messages_total", "batch", "consumer", "shared_memory")
        until(lambda: parse(scrape(port))[sent] >= 50)  # workers write their counters now and then
        until(lambda: parse(scrape(port))["stagepipe_stage_item_seconds_count", "image"] > 100)
        text = scrape(port)
    values = parse(text)
    assert all(
        sample.labels["pipeline"] == "test" for f in text_string_to_metric_families(text) for sample in f.samples
    )
    assert values["stagepipe_delivered_items_total",] == 50
    assert values["stagepipe_delivered_samples_total",] == 200
    assert values["stagepipe_worker_restarts_total", "image"] == 1
    assert values["stagepipe_workers", "image"] == 2
    assert values["stagepipe_process_cpu_seconds_total", "image"] > 0
    assert values["stagepipe_shared_memory_limit_bytes",] > 0
    histogram = [
        value for key, value in values.items() if key[0] == "stagepipe_stage_item_seconds_bucket" and "image" in key
    ]
    assert histogram == sorted(histogram)
    assert len(histogram) == 26
    # Not all 200: what the killed worker counted in its last tenth of a second is lost.
    assert histogram[-1] == values["stagepipe_stage_item_seconds_count", "image"] > 100
    assert 0 < values["stagepipe_stage_item_seconds_sum", "image"] < 90


def test_scrape_agrees_with_the_report():
    stages = (
        stage("skip_thirds"),
        stage("tests.support.bad_stages.raises", name="fails", on_error="skip", retries=2),
        stage("plus"),
    )
    config = pipeline(*stages, source=60, report={"prometheus": 0})
    with Pipeline(config) as running:
        assert len(list(running)) == 39
        until(lambda: parse(scrape(port_of(running)))["stagepipe_stage_items_total", "plus"] == 39)
        until(lambda: count_messages(parse(scrape(port_of(running)))) == [60, 40, 39, 39])
        values = parse(scrape(port_of(running)))
    report = running.report()
    for each in report.stages:
        found = [
            values[f"stagepipe_stage_{name}_total", each.name]
            for name in ("items", "skipped_items", "failed_attempts", "retries")
        ]
        assert found == [each.items, each.skipped, each.errors, each.retries], each.name
    assert (report.stages[1].skipped, report.stages[2].errors, report.stages[2].retries) == (20, 3, 2)
    assert values["stagepipe_stage_dead_letters_total", "fails"] == len(report.dead_letters) == 1
    assert count_messages(values) == [sum(msgspec.structs.astuple(hop.messages)) for hop in report.hops]
    for hop in report.hops:
        ends = (hop.source, "consumer" if hop.target == "sink" else hop.target)
        nbytes = sum(values["stagepipe_hop_bytes_total", kind, *ends] for kind in ("inline", "copied", "zero_copy"))
        assert nbytes == hop.bytes.total > 0
        assert values["stagepipe_hop_cost_seconds_count", *ends] > 0
        assert values["stagepipe_hop_queue_seconds_count", *ends] > 0
    assert values["stagepipe_process_starved_seconds_total", "plus"] > 0
    assert values["stagepipe_consumer_wait_seconds_total",] > 0
    assert values["stagepipe_consumer_busy_seconds_total",] >= 0


def test_a_forked_child_does_not_keep_the_port():
    with Pipeline(CONFIG) as running:
        port = port_of(running)
        next(iter(running))
        child = os.fork()
        if not child:
            time.sleep(1000)
            os._exit(0)
    try:
        socket.create_server(("127.0.0.1", port)).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_host_of_another_machine_is_refused_with_the_fix():
    with pytest.raises(UsageError, match=r"192.0.2.1:0: .*; name an address of this machine, such as 127.0.0.1"):
        Pipeline(CONFIG, prometheus="192.0.2.1:0").start()


def test_server_ends_with_the_run():
    with Pipeline(CONFIG) as running:
        port = port_of(running)
        assert "stagepipe_source_items_total" in scrape(port)
    with pytest.raises(urllib.error.URLError):
        scrape(port)


def test_port_in_use_is_refused_before_the_start():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            Pipeline(CONFIG, prometheus=port).start()
        with Pipeline(CONFIG, prometheus=0) as running:  # a free port, which was found
            assert port_of(running) not in {0, port}


def test_metrics_are_on_loopback_unless_another_address_is_named():
    with Pipeline(CONFIG, prometheus=0) as running:
        assert running._run._metrics_server._server.server_address[0] == "127.0.0.1"
    with pytest.raises(UsageError, match="expected an address"):
        Pipeline(CONFIG, prometheus="here")


def test_client_is_imported_only_when_used():
    code = (
        "import sys; from stagepipe import from_source; from_source(range(9)).run(); "
        "print('prometheus_client' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "False\n"


BOARD = json.loads((ROOT / "deploy/grafana/stagepipe.json").read_text())
"""The board for Grafana."""


def list_queries() -> list[tuple[str, str]]:
    """The title and the expression of each query of the board."""
    return [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel.get("targets", ())]


def test_grafana_board_shows_every_metric_and_no_other():
    with Pipeline(CONFIG) as running:
        exported = {family.name for family in text_string_to_metric_families(scrape(port_of(running)))}
    names = {name for _, query in list_queries() for name in re.findall(r"stagepipe_\w+", query)}
    assert {re.sub(r"_(total|bucket)$", "", name) for name in names} == exported


def test_panels_of_the_board_have_numbers_and_places_of_their_own():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.slow
def test_prometheus_answers_every_query_of_the_board(tmp_path):
    """Debian's server scrapes a run."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no `prometheus` is installed: apt-get install prometheus")
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        web_port = reserved.getsockname()[1]
    follows = stage("image", with_={"size": 100}, workers={"min": 1, "max": 2})
    config = pipeline(follows, batch(4), source=200, window=16, report={"prometheus": 0})  # it works all the time
    with Pipeline(config) as running:
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s}\n"
            f'scrape_configs: [{{job_name: s, static_configs: [{{targets: ["127.0.0.1:{port_of(running)}"]}}]}}]\n'
        )
        command = [
            binary,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{web_port}",
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: ask(web_port, "stagepipe_source_items_total") is not None)  # a rate needs two scrapes
            for _ in running:
                time.sleep(0.1)
            until(lambda: ask(web_port, "stagepipe_delivered_items_total") == "50")
            for title, query in list_queries():
                concrete = (
                    query.replace("$__rate_interval", "1m").replace("$pipeline", "test").replace("$instance", ".*")
                )
                found = ask(web_port, concrete)
                assert found not in {None, "NaN"}, f"{title}: {concrete} gives {found}"
        finally:
            server.terminate()
            server.wait(20)


def ask(web_port: int, query: str) -> str | None:
    """The value of the first result; None while there is none."""
    url = f"http://127.0.0.1:{web_port}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            results = json.load(response)["data"]["result"]
    except OSError:
        return None
    return results[0]["value"][1] if results else None
