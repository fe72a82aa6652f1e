"""Every query of every dashboard, asked of a real Prometheus that scraped the gateway under the demo's traffic."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fork_server import launch
from patience import HANG_SECONDS
from prometheus_server import Prometheus
from shipped import DASHBOARDS, dashboard, exposed, queries, rules, variables

TRAFFIC_SECONDS = 20.0
"""Long enough for every application of the demo to have conversations that go on, and for their reasons."""
WINDOW = "15s"
"""In place of ``$__rate_interval`` and ``$__range``."""
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus after it watched the demo for a while; both still run."""
    folder = tmp_path_factory.mktemp("scraped")
    with contextlib.ExitStack() as stack:
        public, admin = _demo(folder, stack)
        prometheus = Prometheus(folder, admin.removeprefix("http://"))
        stack.callback(prometheus.stop)
        prometheus.wait_until_ready()
        _ask_for_trouble(public)
        _ask_unexplained(public, TRAFFIC_SECONDS / 2)
        _ask_too_much(public)
        _ask_unexplained(public, TRAFFIC_SECONDS / 2)
        assert prometheus.scrape_problem() == ""
        yield prometheus


def _demo(folder: Path, stack: contextlib.ExitStack) -> tuple[str, str]:
    """Starts ``prefix-gateway demo``; returns the URLs of both ports."""
    said = folder / "demo.out"
    with said.open("wb") as out:
        process = launch(
            [sys.executable, "-m", "gateway", "demo", "--port", "0", "--admin-port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )

    def end() -> None:
        process.send_signal(signal.SIGINT)
        process.wait(HANG_SECONDS)

    stack.callback(end)
    end_of_patience = time.monotonic() + HANG_SECONDS
    while (admin := re.search(r"(http://\S+)/metrics", said.read_text())) is None:
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < end_of_patience, said.read_text()
        time.sleep(0.1)
    public = re.search(r"gateway +(http://\S+)", said.read_text())
    assert public is not None, said.read_text()
    return public[1], admin[1]


def _ask_for_trouble(public: str) -> None:
    """What the demo's clients do not do: a request that is refused, and a person's data in what is shared."""
    with httpx.Client(base_url=public, trust_env=False, timeout=60) as client:
        client.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
        for question in ("One?", "Two?", "Three?"):
            system = "Send the money to DE89 3704 0044 0532 0130 00. " + "Parcels go to the front desk. " * 60
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            body = {"model": "demo", "messages": messages, "max_tokens": 2}
            answer = client.post("/v1/chat/completions", json=body, headers={"x-session-id": question})
            assert answer.status_code == 200, answer.text


def _ask_too_much(public: str) -> None:
    """More at once than three simulated replicas compute in seconds: some of it waits."""

    def ask(number: int) -> int:
        messages = [{"role": "user", "content": f"{number} and all that belongs to it. " * 250}]
        body = {"model": "demo", "messages": messages, "max_tokens": 1}
        return httpx.post(f"{public}/v1/chat/completions", json=body, timeout=60, trust_env=False).status_code

    with ThreadPoolExecutor(40) as clients:
        assert set(clients.map(ask, range(40))) == {200}


def _ask_unexplained(public: str, seconds: float) -> None:
    """Streams that are cold, all the time, of a named application: the demo's own are warm after a while; and requests
    of another API."""
    end = time.monotonic() + seconds
    with httpx.Client(base_url=public, trust_env=False, timeout=60) as client:
        while (now := time.monotonic()) < end:
            body = {
                "model": "demo",
                "messages": [{"role": "user", "content": f"{now} and so on. " * 20}],
                "max_tokens": 2,
            }
            headers = {"x-prompt-id": "helpdesk"}
            client.post("/v1/chat/completions", json=body | {"stream": True}, headers=headers)
            client.post("/v1/messages", json=body)
            time.sleep(0.5)


def chosen(prometheus: Prometheus, board: dict[str, Any]) -> dict[str, str]:
    """What stands in place of each variable when all its values are chosen. Fails if it has none."""
    values: dict[str, str] = {}
    for name, query in variables(board).items():
        match = _LABEL_VALUES.fullmatch(filled(query, values))
        assert match is not None, query
        found = prometheus.label_values(match[2], match[1])
        assert found, f"{board['title']}: no value of ${name}"
        values[name] = "|".join(found)
    return values


def filled(expr: str, values: dict[str, str]) -> str:
    """A query with its variables filled in."""
    values = values | {"__rate_interval": WINDOW, "__range": WINDOW}
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expr)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_no_query_returns_nothing(scraped, path):
    board = dashboard(path)
    values = chosen(scraped, board)
    empty = [
        query.where
        for query in queries(board)
        if not scraped.values(filled(query.expr, values), instant=query.instant, seconds=TRAFFIC_SECONDS / 2)
    ]
    assert empty == []


@pytest.mark.parametrize(
    "expr",
    [
        'sum(rate(gateway_cached_tokens_total{evidence="confirmed"}[15s]))',
        'histogram_quantile(0.5, sum by (le) (rate(gateway_ttft_seconds_bucket{decision="warm"}[15s])))',
        'sum(rate(gateway_missed_tokens_total{reason="dynamic_time"}[15s]))',
        'sum(gateway_index_blocks{source="events"})',
        'sum(rate(gateway_kv_events_total{type="stored"}[15s]))',
        'sum(gateway_requests_total{status="400"})',
        'sum(gateway_personal_data_findings_total{kind="iban", shared="true"})',
    ],
)
def test_the_traffic_gives_them_something_to_show(scraped, expr):
    (value,) = scraped.values(expr, instant=True, seconds=0)
    assert value > 0


def test_a_chart_of_waiting_times_names_requests(scraped):
    for path in DASHBOARDS:
        board = dashboard(path)
        values = chosen(scraped, board)
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                if target.get("exemplar"):
                    found = scraped.exemplars(filled(target["expr"], values), TRAFFIC_SECONDS)
                    assert found, f"{panel['title']} {target['refId']}"
                    assert all(each["labels"].keys() == {"request_id"} for each in found)


def test_every_rule_is_worked_out(scraped):
    found = scraped.healthy_rules()
    assert {rule["record"] for rule in rules("rules.yml")} | {rule["alert"] for rule in rules("alerts.yml")} == set(
        found
    )
    for rule in rules("rules.yml"):
        assert scraped.values(rule["record"], instant=True, seconds=0), rule["record"]


def test_of_a_healthy_gateway_only_the_personal_data_is_reported(scraped):
    found = scraped.healthy_rules()
    firing = {
        name
        for name, each in found.items()
        for rule in each
        for alert in rule.get("alerts", [])
        if alert["state"] == "firing"
    }
    assert firing == {"PrefixGatewayPersonalDataShared"}


def test_it_scrapes_what_the_catalog_declares(scraped):
    seen = set(scraped.label_values("__name__", '{__name__=~"gateway_.+"}'))
    assert seen <= exposed()
    # Nothing was warmed, no client was refused, all replicas were found, and all searches for personal data were made.
    assert exposed() - seen == {
        "gateway_discovery_errors_total",
        "gateway_personal_data_detector_failures_total",
        "gateway_personal_data_skipped_total",
        "gateway_shed_total",
        "gateway_warm_gpu_seconds_total",
        "gateway_warm_left_out_total",
        "gateway_warm_prefill_tokens_total",
        "gateway_warm_requests_total",
        "gateway_warm_saved_gpu_seconds_total",
        "gateway_warm_saved_tokens_total",
    }
