"""What endpoint slices mean."""

import pytest
from discovery_fakes import endpoint

from gateway.config.discovery_settings import KubernetesSettings, TemplateSettings
from gateway.discovery.discovered import Condition, SourceFailed
from gateway.discovery.endpoint_slices import Slices


def slice_of(name, *endpoints, ports=(("http", 8000),), family="IPv4"):
    return {
        "metadata": {"name": name, "resourceVersion": "7", "labels": {"any": "thing"}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": port_name, "port": port, "protocol": "TCP"} for port_name, port in ports],
    }


def found(*items, template=None, **settings):
    slices = Slices()
    slices.replace(items)
    settings = KubernetesSettings(**{"service": "vllm"} | settings)
    return {
        each.replica.id: (each.replica.url, each.condition)
        for each in slices.found(settings, template or TemplateSettings())
    }


def test_a_pod_is_a_replica_by_its_name():
    assert found(slice_of("s", endpoint("10.0.0.1", "vllm-0"), endpoint("10.0.0.2", "vllm-1"))) == {
        "vllm-0": ("http://10.0.0.1:8000", Condition.READY),
        "vllm-1": ("http://10.0.0.2:8000", Condition.READY),
    }


def test_pods_of_the_same_name_in_two_namespaces_are_distinguished():
    pods = [slice_of("s", endpoint("10.0.0.1", "vllm-0"))]
    assert [*found(*pods), *found(*pods, namespace="ml"), *found(*pods, namespace="other")] == [
        "vllm-0",
        "vllm-0.ml",
        "vllm-0.other",
    ]


def test_a_change_is_reported_after_any_earlier_report():
    slices = Slices()
    settings = KubernetesSettings(service="vllm")

    def reported(*endpoints, template=None, settings=settings):
        slices.change("MODIFIED", slice_of("s", *endpoints))
        return [
            (each.replica.id, each.replica.url, each.replica.region, each.condition)
            for each in slices.found(settings, template or TemplateSettings())
        ]

    zone = TemplateSettings(region="zone")
    assert reported(endpoint("10.0.0.1", "vllm-0", zone="a")) == [
        ("vllm-0", "http://10.0.0.1:8000", "", Condition.READY)
    ]
    assert reported(endpoint("10.0.0.1", "vllm-0", ready=False)) == [
        ("vllm-0", "http://10.0.0.1:8000", "", Condition.NOT_READY)
    ]
    assert reported(endpoint("10.0.0.2", "vllm-0")) == [("vllm-0", "http://10.0.0.2:8000", "", Condition.READY)]
    assert reported(endpoint("10.0.0.2", "vllm-1")) == [("vllm-1", "http://10.0.0.2:8000", "", Condition.READY)]
    assert reported(endpoint("10.0.0.2", "vllm-1", zone="a"), template=zone) == [
        ("vllm-1", "http://10.0.0.2:8000", "a", Condition.READY)
    ]
    assert reported(endpoint("10.0.0.2", "vllm-1", zone="b"), template=zone) == [
        ("vllm-1", "http://10.0.0.2:8000", "b", Condition.READY)
    ]
    secure = KubernetesSettings(service="vllm", scheme="https")
    assert reported(endpoint("10.0.0.2", "vllm-1"), settings=secure)[0][1] == "https://10.0.0.2:8000"


def test_what_is_no_pod_is_known_by_its_address():
    assert list(found(slice_of("s", endpoint("10.0.0.1")))) == ["10.0.0.1:8000"]
    assert list(found(slice_of("s", endpoint("gpu.example"), family="FQDN"))) == ["gpu.example:8000"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, Condition.READY),
        ({"ready": None, "serving": None, "terminating": None}, Condition.READY),
        ({"ready": True, "serving": True, "terminating": False}, Condition.READY),
        ({"ready": False, "serving": False, "terminating": False}, Condition.NOT_READY),
        ({"ready": False, "serving": True, "terminating": True}, Condition.LEAVING),
        ({"ready": False, "serving": False, "terminating": True}, Condition.LEAVING),
        # With publishNotReadyAddresses.
        ({"ready": True, "serving": True, "terminating": True}, Condition.LEAVING),
    ],
)
def test_conditions(conditions, expected):
    reported = {"addresses": ["10.0.0.1"], "conditions": conditions}
    assert found(slice_of("s", reported)) == {"10.0.0.1:8000": ("http://10.0.0.1:8000", expected)}


def test_a_zone_is_a_region_where_that_is_wanted():
    slices = Slices()
    slices.replace([slice_of("s", endpoint("10.0.0.1", "a", zone="eu-1"), endpoint("10.0.0.2", "b"))])
    for region, expected in (("zone", ["eu-1", ""]), ("here", ["here", "here"])):
        reported = slices.found(KubernetesSettings(service="vllm"), TemplateSettings(region=region))
        assert [each.replica.region for each in reported] == expected


PORTS = (("metrics", 9000), ("http", 8000))


@pytest.mark.parametrize(
    ("ports", "port", "expected"),
    [
        (PORTS, "http", 8000),
        (PORTS, "9000", 9000),
        (PORTS, 8123, 8123),  # also one that the service does not list
        ((("any", 8000),), "", 8000),
        (((None, 8000),), "", 8000),
    ],
)
def test_the_port_by_name_or_number(ports, port, expected):
    assert found(slice_of("s", endpoint("10.0.0.1", "a"), ports=ports), port=port)["a"][0].endswith(f":{expected}")


@pytest.mark.parametrize(
    ("ports", "port", "problem"),
    [
        (PORTS, "", "several ports or none"),
        (PORTS, "grpc", "no port named grpc"),
        ((), "", "several ports or none"),
        ((("http", None),), "http", "no port named http"),
    ],
)
def test_a_port_that_cannot_be_determined(ports, port, problem):
    with pytest.raises(SourceFailed, match=problem):
        found(slice_of("s", endpoint("10.0.0.1", "a"), ports=ports), port=port)
    # Without endpoints there is nothing to complain of: so begins every service.
    assert found(slice_of("s", ports=ports), port=port) == {}


def test_a_pod_with_two_families_is_one_replica():
    items = [
        slice_of("six", endpoint("fd00::1", "a"), endpoint("fd00::2", "b"), family="IPv6"),
        slice_of("four", endpoint("10.0.0.1", "a", ready=False), family="IPv4"),
    ]
    for order in (items, items[::-1]):
        assert found(*order) == {
            "a": ("http://10.0.0.1:8000", Condition.NOT_READY),
            "b": ("http://[fd00::2]:8000", Condition.READY),
        }


def test_a_pod_that_is_moved_between_slices_is_what_the_better_one_says():
    items = [
        slice_of("old", endpoint("10.0.0.1", "a", ready=False)),
        slice_of("new", endpoint("10.0.0.1", "a")),
    ]
    for order in (items, items[::-1]):
        assert found(*order) == {"a": ("http://10.0.0.1:8000", Condition.READY)}


def test_slices_change_and_go():
    slices = Slices()
    settings, template = KubernetesSettings(service="vllm"), TemplateSettings()

    def names():
        return [each.replica.id for each in slices.found(settings, template)]

    assert slices.change("ADDED", slice_of("s", endpoint("10.0.0.1", "a"))) == "7"
    slices.change("ADDED", slice_of("t", endpoint("10.0.0.2", "b")))
    assert names() == ["a", "b"]
    slices.change("MODIFIED", slice_of("s", endpoint("10.0.0.3", "c")))
    assert names() == ["b", "c"]
    slices.change("DELETED", slice_of("s"))
    assert names() == ["b"]
    slices.replace([])
    assert names() == []


@pytest.mark.parametrize(
    "item",
    [None, [], "x", {}, {"metadata": 1}, {"metadata": {"name": "s"}, "endpoints": [{"addresses": [4]}]}],
)
def test_what_is_no_slice(item):
    with pytest.raises(SourceFailed, match="cannot be decoded"):
        Slices().replace([item])


def test_empty_parts():
    assert found({"metadata": {"name": "s"}, "endpoints": None, "ports": None}) == {}
    assert found(slice_of("s", {"addresses": []}, endpoint("10.0.0.1", "a"))) == {
        "a": ("http://10.0.0.1:8000", Condition.READY)
    }


def test_an_address_that_cannot_be_used():
    with pytest.raises(SourceFailed, match="a b:8000 cannot be used: url: "):
        found(slice_of("s", endpoint("a b")))
