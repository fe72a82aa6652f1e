"""Replicas from a name server, over UDP."""

import pytest

from gateway.config.discovery_settings import DnsSettings, TemplateSettings
from gateway.discovery.discovered import Condition
from gateway.discovery.dns_source import DnsSource

NAME = "vllm.default.svc."
SRV = "_http._tcp.vllm.default.svc."


def source(names, template=None, **settings):
    settings = {"interval_seconds": 0.05, "server": names.server} | settings
    return DnsSource(DnsSettings(**settings), template or TemplateSettings())


def hosts(names, **settings):
    return source(names, **{"name": NAME, "port": 8000} | settings)


def urls(found):
    return [each.replica.url for each in found] if not isinstance(found, str) else found


async def test_every_address_is_a_replica(names, listen_to):
    names.records = {(NAME, "A"): ["10.0.0.2", "10.0.0.1"], (NAME, "AAAA"): ["fd00::1"]}
    template = TemplateSettings(api_key="sk-1", region="eu", events="tcp://{host}:5557", replay="tcp://{host}:5657")
    received = listen_to(source(names, template, name=NAME, port=8000))
    found = await received.until(lambda said: len(said) == 3)
    assert {each.replica.id for each in found} == {"10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"}
    assert {each.condition for each in found} == {Condition.READY}
    first, six = (next(each.replica for each in found if name in each.replica.id) for name in ("10.0.0.1", "fd00"))
    assert (first.url, first.region, first.events) == ("http://10.0.0.1:8000", "eu", "tcp://10.0.0.1:5557")
    assert first.replay == "tcp://10.0.0.1:5657"
    assert first.api_key.get_secret_value() == "sk-1"
    assert (six.url, six.events) == ("http://[fd00::1]:8000", "tcp://[fd00::1]:5557")


async def test_addresses_come_and_go(names, listen_to):
    names.records = {(NAME, "A"): ["10.0.0.1"]}
    received = listen_to(hosts(names))
    await received.until(lambda said: urls(said) == ["http://10.0.0.1:8000"])
    names.records = {(NAME, "A"): ["10.0.0.1", "10.0.0.2"]}
    await received.until(lambda said: len(said) == 2)
    names.records = {(NAME, "A"): ["10.0.0.2"]}
    await received.until(lambda said: urls(said) == ["http://10.0.0.2:8000"])
    assert not [said for said in received.said if isinstance(said, str)]


async def test_services_give_host_and_port(names, listen_to):
    names.records = {(SRV, "SRV"): ["0 50 8001 vllm-1.vllm.default.svc.", "5 50 8000 vllm-0.vllm.default.svc."]}
    received = listen_to(source(names, srv=SRV, scheme="https"))
    found = await received.until(lambda said: len(said) == 2)
    assert urls(found) == ["https://vllm-0.vllm.default.svc:8000", "https://vllm-1.vllm.default.svc:8001"]
    assert [each.replica.id for each in found] == ["vllm-0.vllm.default.svc:8000", "vllm-1.vllm.default.svc:8001"]


async def test_a_service_that_is_declared_not_to_exist(names, listen_to):
    names.records = {(SRV, "SRV"): ["0 0 0 ."]}
    assert await listen_to(source(names, srv=SRV)).until(lambda said: True) == []


@pytest.mark.parametrize("records", [{}, {(NAME, "TXT"): ["x"]}])
async def test_a_name_without_addresses_is_an_answer_with_nothing(names, listen_to, records):
    names.records = records
    assert await listen_to(hosts(names)).until(lambda said: True) == []


async def test_a_server_that_fails_is_no_answer(names, listen_to):
    names.failing = {"A", "AAAA"}
    received = listen_to(hosts(names))
    problem = await received.until(lambda said: isinstance(said, str))
    assert f"{NAME} (A) cannot be looked up" in problem
    names.failing = set()
    names.records = {(NAME, "A"): ["10.0.0.1"]}
    await received.until(lambda said: urls(said) == ["http://10.0.0.1:8000"])


async def test_a_server_that_says_nothing_is_no_answer(names, listen_to, monkeypatch):
    monkeypatch.setattr("gateway.discovery.dns_source._LOOK_SECONDS", 0.2)
    names.silent = True
    received = listen_to(source(names, srv=SRV))
    assert "cannot be looked up" in await received.until(lambda said: True)


async def test_one_family_that_fails_takes_nothing_away(names, listen_to):
    names.records = {(NAME, "A"): ["10.0.0.1"], (NAME, "AAAA"): ["fd00::1"]}
    received = listen_to(hosts(names))
    await received.until(lambda said: len(said) == 2)
    names.failing = {"AAAA"}
    names.records[NAME, "A"] = ["10.0.0.2"]
    found = await received.until(lambda said: "http://10.0.0.2:8000" in urls(said))
    assert urls(found) == ["http://10.0.0.2:8000", "http://[fd00::1]:8000"]


async def test_one_family_that_always_fails_does_not_keep_the_other(names, listen_to):
    names.failing = {"AAAA"}
    names.records = {(NAME, "A"): ["10.0.0.1"]}
    await listen_to(hosts(names)).until(lambda said: urls(said) == ["http://10.0.0.1:8000"])


@pytest.mark.parametrize(
    ("ttl", "interval", "expected"),
    [(0, 30, 1.0), (3, 30, 3), (60, 30, 30)],
)
async def test_records_are_kept_as_long_as_they_may_be(names, monkeypatch, ttl, interval, expected):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr("gateway.discovery.dns_source.asyncio.sleep", sleep)
    names.records, names.ttl = {(SRV, "SRV"): ["0 0 8000 a."]}, ttl
    answers = source(names, srv=SRV, interval_seconds=interval).answers()
    await anext(answers)
    await anext(answers)
    await answers.aclose()
    assert pauses == [expected]
