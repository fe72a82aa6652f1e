"""Mistakes that only show when the entries are looked at together."""

import pytest
from admission_setup import configured

from gateway.config.tenant_checks import mistakes
from gateway.core.api_keys import hash_key

ONE, TWO, THREE = (hash_key(text) for text in ("one", "two", "three"))


def found(tenants, *, host="127.0.0.1", forward=False, models=("m", "n"), regions=("", "eu"), **admission):
    result = list(
        mistakes(
            *configured(tenants, **admission),
            public_host=host,
            is_loopback=host == "127.0.0.1",
            forward_authorization=forward,
            models=models,
            regions=regions,
        )
    )
    assert not any(each[7:] in message for _, message in result for each in (ONE, TWO, THREE))
    return result


@pytest.mark.parametrize(
    ("tenants", "admission"),
    [
        ([], {}),
        ([], {"open": True}),
        ([], {"open": True, "host": "0.0.0.0"}),
        ([{"id": "default", "concurrent": 3}], {}),
        ([{"id": "a", "keys": [ONE, TWO]}, {"id": "b", "keys": [THREE]}], {"host": "0.0.0.0"}),
        ([{"id": "default", "keys": [ONE]}], {}),
        ([{"id": "a"}, {"id": "*"}], {"trusted_proxies": ["10.0.0.0/8"], "host": "0.0.0.0"}),
        ([{"id": "a", "keys": [ONE]}, {"id": "b"}], {"trusted_proxies": ["10.0.0.0/8"]}),
        ([], {"trusted_proxies": ["10.0.0.0/8"], "forward": True}),
        ([], {"forward": True}),
        ([{"id": "a", "keys": [{"hash": ONE, "models": ["m"]}], "models": ["m", "n"], "regions": ["eu"]}], {}),
        ([{"id": "a", "keys": [{"hash": ONE, "id": "x"}]}, {"id": "b", "keys": [{"hash": TWO, "id": "x"}]}], {}),
    ],
)
def test_what_fits_together_is_no_mistake(tenants, admission):
    assert found(tenants, **admission) == []


def test_a_tenant_stands_in_the_file_once():
    tenants = [{"id": "a", "keys": [ONE]}, {"id": "b", "keys": [TWO]}, {"id": "a", "keys": [THREE]}]
    assert found(tenants) == [
        (("tenants", 2, "id"), "tenants[0] has this id already (each tenant stands in the file once)")
    ]


def test_a_key_stands_in_the_file_once_however_it_is_written():
    tenants = [
        {"id": "a", "keys": [ONE, {"hash": ONE[:7] + ONE[7:].upper(), "id": "again"}]},
        {"id": "b", "keys": [TWO, {"hash": ONE, "id": "other"}]},
    ]
    message = (
        "tenants[0].keys[0] is this key already (a key stands for one tenant; make another with `prefix-gateway key`)"
    )
    assert found(tenants) == [(("tenants", 0, "keys", 1), message), (("tenants", 1, "keys", 1), message)]


def test_two_keys_of_a_tenant_have_two_names():
    tenants = [{"id": "a", "keys": [{"hash": ONE, "id": "ci"}, {"hash": TWO, "id": "ci"}]}]
    assert found(tenants) == [
        (
            ("tenants", 0, "keys", 1, "id"),
            "tenants[0].keys[0] is named ci already (the audit log could not tell them apart)",
        )
    ]


@pytest.mark.parametrize("others", [[], [{"id": "k", "keys": [ONE]}]])
def test_a_tenant_that_no_request_can_come_from_is_a_mistake(others):
    ((location, message),) = found([*others, {"id": "a"}])
    assert location == ("tenants", len(others))
    assert message.startswith("no request can come from tenant a: it has no keys, and no trusted proxy could name it")
    assert "prefix-gateway key" in message
    assert "admission.trusted_proxies" in message


def test_beside_keys_the_default_tenant_needs_one_too():
    ((location, message),) = found([{"id": "k", "keys": [ONE]}, {"id": "default"}])
    assert location == ("tenants", 1)
    assert "no request can come from tenant default" in message


@pytest.mark.parametrize("others", [[], [{"id": "k", "keys": [ONE]}]])
def test_an_entry_for_tenants_of_a_proxy_needs_a_proxy(others):
    ((location, message),) = found([*others, {"id": "*"}])
    assert location == ("tenants", len(others), "id")
    assert message.startswith("`*` stands for tenants that a trusted proxy names, and there is none")


def test_open_beside_what_closes_the_door_is_a_mistake():
    ((location, message),) = found([{"id": "a", "keys": [ONE]}], open=True)
    assert location == ("admission", "open")
    assert message.startswith("cannot be true where tenants have keys: clients have to authenticate")
    ((location, message),) = found([], open=True, trusted_proxies=["10.0.0.7"])
    assert location == ("admission", "open")
    assert message.startswith("cannot be true where there are trusted proxies")


def test_the_gateway_is_not_opened_to_the_network_by_accident():
    ((location, message),) = found([], host="0.0.0.0")
    assert location == ("server", "host")
    assert message == (
        "other machines may reach server.host 0.0.0.0, and no key is required (give tenants keys, made with "
        "`prefix-gateway key`; or, to serve everybody, set admission.open: true)"
    )
    assert found([{"id": "default"}], host="gw.internal")[0][0] == ("server", "host")


def test_the_gateways_keys_are_not_handed_to_the_engines():
    ((location, message),) = found([{"id": "a", "keys": [ONE]}], forward=True)
    assert location == ("relay", "forward_authorization")
    assert message.startswith("would hand the clients' keys for this gateway to the engines (set it to false")


def test_models_and_regions_have_to_exist():
    keys = [{"hash": ONE, "models": ["m", "mm"]}, {"hash": TWO, "models": ["n"]}]
    tenants = [{"id": "a", "keys": keys, "models": ["m", "zzz"], "regions": ["eu", "us"]}]
    assert found(tenants) == [
        (("tenants", 0, "models", 1), "there is no model 'zzz', expected one of m, n"),
        (("tenants", 0, "keys", 0, "models", 1), "there is no model 'mm' (did you mean m?)"),
        (
            ("tenants", 0, "keys", 1, "models", 0),
            "tenant a may not use 'n' (add it to the tenant's models, or remove it)",
        ),
        (("tenants", 0, "regions", 1), "no replica is in region 'us', expected one of eu"),
    ]
    assert found([{"id": "a", "keys": [ONE], "regions": ["eu"]}], regions=[""]) == [
        (("tenants", 0, "regions", 0), "no replica is in region 'eu' (give the replicas there a region)")
    ]


def test_all_are_found_at_once():
    tenants = [{"id": "a", "keys": [ONE], "models": ["x"]}, {"id": "a", "keys": [ONE]}, {"id": "*"}, {"id": "b"}]
    assert len(found(tenants, forward=True, open=True)) == 7
