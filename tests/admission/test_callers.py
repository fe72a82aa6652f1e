"""Who is admitted, as whom, and what all others get as an answer."""

import pytest
from admission_setup import WALL, AdmissionSetup, configured, request

from gateway.admission import Authenticator
from gateway.core.api_keys import hash_key, new_key
from gateway.core.errors import BadRequest, Forbidden, GatewayError, Unauthorized
from gateway.core.tenant import EVERYBODY, PersonalDataMode

PROXY = "10.0.0.7"


def reported(setup: AdmissionSetup, key: str | None = None, **options) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        setup.caller(key, **options)
    assert key is None or key not in f"{caught.value!s}{caught.value!r}{caught.value.headers}"
    return caught.value


# With a key


def test_a_key_identifies_the_tenant_with_all_its_settings(key, acme):
    entry = acme(
        group="retail",
        regions=["eu", "us"],
        models=["m", "n"],
        personal_data="mask",
        idle_ttl_seconds=60,
        max_age_seconds=600,
    )
    caller = AdmissionSetup([entry]).caller(key)
    assert (caller.tenant.id, caller.tenant.group, caller.tenant.label) == ("acme", "retail", "acme")
    assert caller.tenant.regions == {"eu", "us"}
    assert caller.tenant.personal_data is PersonalDataMode.MASK
    assert (caller.tenant.idle_ttl_seconds, caller.tenant.max_age_seconds) == (60, 600)
    assert (caller.models, caller.scope) == ({"m", "n"}, "")
    assert caller.key_id == hash_key(key)[:15]


def test_every_key_of_every_tenant_is_valid_and_distinguished():
    keys = {(tenant, number): new_key() for tenant in ("a", "b", "c") for number in range(3)}
    setup = AdmissionSetup(
        [
            {"id": tenant, "keys": [{"hash": hash_key(keys[tenant, n]), "id": f"k{n}"} for n in range(3)]}
            for tenant in ("a", "b", "c")
        ]
    )
    for (tenant, number), each in keys.items():
        caller = setup.caller(each)
        assert (caller.tenant.id, caller.key_id) == (tenant, f"k{number}")


def test_a_key_may_use_what_both_it_and_its_tenant_may(key):
    def models(of_tenant, of_key):
        entry = {"id": "a", "models": of_tenant, "keys": [{"hash": hash_key(key), "models": of_key}]}
        return AdmissionSetup([entry]).caller(key).models

    assert models(None, None) is None
    assert models(["m", "n"], None) == {"m", "n"}
    assert models(None, ["m"]) == {"m"}
    assert models(["m", "n"], ["n", "o"]) == {"n"}


def test_the_scheme_may_be_written_in_any_case(key, acme):
    setup = AdmissionSetup([acme()])
    assert setup.caller(authorization=f"bEaReR  {key}").tenant.id == "acme"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "There is no API key. Send it as `authorization: Bearer <key>`."),
        ({"authorization": ""}, "There is no API key in the header authorization."),
        ({"authorization": "Bearer"}, "There is no API key in the header authorization."),
        ({"authorization": "Basic dXNlcjpwYXNz"}, "There is no API key in the header authorization."),
        ({"authorization": "Bearer one two"}, "There is no API key in the header authorization."),
        ({"authorization": "Bearer sk-1234"}, "The API key is not valid."),
        ({"authorization": "Bearer " + "x" * 100_000}, "The API key is not valid."),
    ],
)
def test_no_request_is_admitted_without_a_valid_key(acme, headers, message):
    error = reported(AdmissionSetup([acme()]), **headers)
    assert isinstance(error, Unauthorized)
    assert (error.status, error.code, error.param) == (401, "invalid_api_key", None)
    assert ("www-authenticate", "Bearer") in error.headers
    assert error.message.startswith(message)
    assert len(error.message) < 200
    assert error.caller is None
    assert not any(secret in error.message for secret in ("sk-1234", "dXNlcjpwYXNz", "xxx"))


def test_a_hash_from_the_configuration_is_no_key(key, acme):
    assert reported(AdmissionSetup([acme()]), hash_key(key)).message.startswith("The API key is not valid.")


def test_a_key_is_valid_until_the_end_of_its_last_day(key):
    setup = AdmissionSetup([{"id": "a", "keys": [{"hash": hash_key(key), "id": "ci", "expires": "2027-01-15"}]}])
    midnight = WALL + 16 * 3600
    assert setup.caller(key, wall=midnight - 0.001).key_id == "ci"
    error = reported(setup, key, wall=midnight)
    assert (error.status, error.code) == (401, "invalid_api_key")
    assert error.message == "The API key has expired (2027-01-15). Ask the gateway's operator for a new one."
    assert error.caller is not None
    assert (error.caller.tenant.id, error.caller.key_id) == ("a", "ci")


def test_an_expired_key_does_not_take_the_tenants_other_keys_along(key):
    other = new_key()
    hashes = [{"hash": hash_key(key), "expires": "2026-12-31"}, hash_key(other)]
    setup = AdmissionSetup([{"id": "a", "keys": hashes}])
    assert reported(setup, key).status == 401
    assert setup.caller(other).tenant.id == "a"


# Scopes


@pytest.mark.parametrize(
    ("scopes", "asked", "got"),
    [
        ({}, None, ""),
        ({"scope": "de"}, None, "de"),
        ({"scope": "de"}, "de", "de"),
        ({"scope": "de"}, "", "de"),
        ({"scope": "de", "scopes": ["fr"]}, "fr", "fr"),
        ({"scopes": ["fr"]}, None, ""),
        ({"scopes": ["*"]}, "anything:at.all_64", "anything:at.all_64"),
        ({"scope": "de", "scopes": ["*"]}, None, "de"),
    ],
)
def test_a_scope_comes_from_the_key_or_from_the_header_that_it_allows(key, scopes, asked, got):
    setup = AdmissionSetup([{"id": "a", "keys": [{"hash": hash_key(key)} | scopes]}])
    headers = {} if asked is None else {"x_cache_scope": asked}
    assert setup.caller(key, **headers).scope == got


@pytest.mark.parametrize("scopes", [{}, {"scope": "de"}, {"scopes": ["fr", "de"]}])
def test_a_scope_that_the_key_does_not_allow_is_refused(key, scopes):
    error = reported(AdmissionSetup([{"id": "a", "keys": [{"hash": hash_key(key)} | scopes]}]), key, x_cache_scope="it")
    assert isinstance(error, Forbidden)
    assert (error.status, error.code) == (403, "scope_not_allowed")
    assert "may not use the scope 'it' (header x-cache-scope)" in error.message
    assert error.caller is not None
    assert (error.caller.tenant.id, error.caller.scope) == ("a", scopes.get("scope", ""))


MALFORMED = ["a b", "a,b", "a/b", "*", "é", "x" * 65, "x" * 60_000, "a\x00b", "a\r\nx-evil: 1", "{}"]


@pytest.mark.parametrize("scope", MALFORMED)
def test_a_malformed_scope_is_refused_everywhere_and_hardly_quoted(key, scope):
    keyed = AdmissionSetup([{"id": "a", "keys": [{"hash": hash_key(key), "scopes": ["*"]}]}])
    for error in (reported(keyed, key, x_cache_scope=scope), reported(AdmissionSetup([]), x_cache_scope=scope)):
        assert isinstance(error, BadRequest)
        assert (error.status, error.code) == (400, "invalid_scope")
        assert "expected a scope's name, 1 to 64 characters" in error.message
        assert len(error.message) < 200
        assert error.message.isprintable()


def test_a_key_sent_as_a_scope_by_mistake_cannot_be_read_off_the_error(key, acme):
    error = reported(AdmissionSetup([acme()]), key, x_cache_scope=key)
    assert key[:25] not in error.message


# Open mode


def test_without_authentication_every_caller_is_the_default_tenant():
    setup = AdmissionSetup([])
    assert setup.caller() == EVERYBODY
    # clients want some key to be set
    assert setup.caller("sk-anything") == EVERYBODY
    assert setup.caller(authorization="Basic x") == EVERYBODY
    assert setup.caller(x_cache_scope="de").scope == "de"


def test_an_entry_gives_the_default_tenant_its_settings():
    caller = AdmissionSetup([{"id": "default", "models": ["m"], "regions": ["eu"], "personal_data": "block"}]).caller()
    assert caller.tenant.regions == {"eu"}
    assert caller.tenant.personal_data is PersonalDataMode.BLOCK
    assert caller.models == {"m"}


# Trusted proxies


@pytest.mark.parametrize(
    ("proxies", "peer", "trusted"),
    [
        (["10.0.0.7"], "10.0.0.7", True),
        (["10.0.0.7"], "10.0.0.8", False),
        (["10.0.0.0/8"], "10.255.255.255", True),
        (["10.0.0.0/8"], "11.0.0.0", False),
        (["192.168.0.0/16", "10.0.0.7"], "10.0.0.7", True),
        (["10.0.0.0/8"], "::ffff:10.0.0.1", True),
        (["::ffff:10.0.0.0/104"], "10.0.0.1", True),
        (["::ffff:10.0.0.7"], "::ffff:10.0.0.7", True),
        (["::ffff:10.0.0.7"], "::ffff:10.0.0.8", False),
        (["fd00::/8"], "fd12::1", True),
        (["fd00::/8"], "fe80::1", False),
        (["fe80::/10"], "fe80::1%eth0", True),
        (["::/1"], "10.0.0.1", False),
        (["::/1"], "::ffff:10.0.0.1", False),
        (["10.0.0.0/8"], "", False),
        (["10.0.0.0/8"], "10.0.0", False),
        (["10.0.0.0/8"], "localhost", False),
        (["10.0.0.0/8"], "/run/gateway.sock", False),
    ],
)
def test_the_address_of_the_connection_identifies_a_proxy(proxies, peer, trusted):
    setup = AdmissionSetup([{"id": "acme"}], trusted_proxies=proxies)
    for _ in range(2):  # an address seen before, too
        if trusted:
            assert setup.caller(peer=peer, x_tenant_id="acme").tenant.id == "acme"
        else:
            assert reported(setup, peer=peer, x_tenant_id="acme").code == "tenant_header_not_trusted"


def test_a_trusted_proxy_names_the_tenant_with_any_key_it_passes_on(key, acme):
    setup = AdmissionSetup([acme(), {"id": "beta"}], trusted_proxies=[PROXY])
    caller = setup.caller(key, peer=PROXY, x_tenant_id="beta", x_cache_scope="any")
    assert (caller.tenant.id, caller.key_id, caller.scope) == ("beta", "", "any")


def test_behind_a_proxy_that_names_no_tenant_a_key_is_needed(key, acme):
    setup = AdmissionSetup([acme()], trusted_proxies=[PROXY])
    assert setup.caller(key, peer=PROXY).tenant.id == "acme"
    assert setup.caller(key).tenant.id == "acme"
    error = reported(setup, peer=PROXY)
    assert (error.status, error.code) == (401, "invalid_api_key")
    assert error.message == "The proxy named no tenant in x-tenant-id, and there is no API key."


def test_past_the_proxy_no_request_is_admitted_where_there_are_no_keys():
    error = reported(AdmissionSetup([{"id": "acme"}], trusted_proxies=[PROXY]))
    assert (error.status, error.code) == (401, "invalid_api_key")
    assert "requests have to come through the proxy" in error.message


@pytest.mark.parametrize("proxies", [[], [PROXY]])
@pytest.mark.parametrize("with_key", [False, True])
def test_the_tenant_header_of_any_other_client_is_refused_in_every_mode(key, acme, proxies, with_key):
    for tenants in ([], [acme()]):
        error = reported(
            AdmissionSetup(tenants, trusted_proxies=proxies), key if with_key else None, x_tenant_id="acme"
        )
        assert isinstance(error, Forbidden)
        assert (error.status, error.code) == (403, "tenant_header_not_trusted")
        assert "x-tenant-id" in error.message
        assert "10.9.9.9" in error.message
        assert "admission.trusted_proxies" in error.message
    # even an empty one, and one that would be refused anyway
    assert reported(AdmissionSetup([acme()]), key, x_tenant_id="").code == "tenant_header_not_trusted"
    assert reported(AdmissionSetup([acme()]), key, x_tenant_id="a b").code == "tenant_header_not_trusted"


def test_the_tenant_header_may_have_another_name(key, acme):
    setup = AdmissionSetup([acme()], trusted_proxies=[PROXY], tenant_header="X-Customer")
    assert setup.caller(peer=PROXY, x_customer="acme").tenant.id == "acme"
    assert "x-customer" in reported(setup, x_customer="acme").message
    assert reported(setup, peer=PROXY, x_tenant_id="acme").code == "invalid_api_key"


@pytest.mark.parametrize("name", ["", *MALFORMED])
def test_a_malformed_tenant_is_refused(name):
    error = reported(AdmissionSetup([{"id": "*"}], trusted_proxies=[PROXY]), peer=PROXY, x_tenant_id=name)
    assert isinstance(error, BadRequest)
    assert (error.status, error.code) == (400, "invalid_tenant")
    assert "x-tenant-id" in error.message
    assert "expected a tenant's name, 1 to 64 characters" in error.message
    assert len(error.message) < 200
    assert error.message.isprintable()


def test_a_tenant_without_an_entry_is_refused():
    error = reported(AdmissionSetup([{"id": "acme"}], trusted_proxies=[PROXY]), peer=PROXY, x_tenant_id="beta")
    assert isinstance(error, Forbidden)
    assert (error.status, error.code) == (403, "unknown_tenant")
    assert "There is no tenant 'beta'" in error.message


def test_one_entry_may_stand_for_all_tenants_without_one_of_their_own():
    setup = AdmissionSetup(
        [{"id": "acme"}, {"id": "*", "models": ["m"], "personal_data": "off"}], trusted_proxies=[PROXY]
    )
    beta, default = (setup.caller(peer=PROXY, x_tenant_id=name) for name in ("beta", "default"))
    assert (beta.tenant.id, beta.tenant.label, beta.models) == ("beta", "other", {"m"})
    assert beta.tenant.personal_data is PersonalDataMode.OFF
    assert (default.tenant.id, default.tenant.label) == ("default", "other")
    assert setup.caller(peer=PROXY, x_tenant_id="acme").tenant.label == "acme"


# Headers that stand there twice


@pytest.mark.parametrize("name", ["authorization", "x-tenant-id", "x-cache-scope"])
@pytest.mark.parametrize("proxies", [[], [PROXY]])
def test_a_header_given_twice_with_different_values_is_refused(key, acme, name, proxies):
    first = f"Bearer {key}" if name == "authorization" else "one"
    headers = [*request(), (name.encode(), first.encode()), (b"accept", b"*/*"), (name.encode(), b"Bearer two")]
    for tenants in ([], [acme()]):
        for lines in (headers, headers[::-1]):
            with pytest.raises(BadRequest) as caught:
                AdmissionSetup(tenants, trusted_proxies=proxies).gate.identify(lines, PROXY, WALL)
            assert (caught.value.status, caught.value.code) == (400, "duplicate_header")
            assert name in caught.value.message
            assert key not in caught.value.message


def test_an_empty_header_beside_another_is_no_way_around():
    lines = [*request(), (b"x-cache-scope", b""), (b"x-cache-scope", b"de")]
    with pytest.raises(BadRequest):
        AdmissionSetup([]).gate.identify(lines, PROXY, WALL)


def test_a_header_given_twice_with_the_same_value_says_one_thing(key, acme):
    lines = [*request(key), (b"authorization", f" Bearer {key} ".encode())]
    assert AdmissionSetup([acme()]).gate.identify(lines, PROXY, WALL).tenant.id == "acme"


# By name


def test_a_tenant_can_be_asked_for_by_name(acme):
    keyed = AdmissionSetup([acme(group="retail")]).gate
    assert (tenant := keyed.tenant("acme")) is not None
    assert (tenant.id, tenant.group) == ("acme", "retail")
    assert keyed.tenant("beta") is keyed.tenant("default") is keyed.tenant("*") is None

    behind_proxy = AdmissionSetup([{"id": "acme"}, {"id": "*"}], trusted_proxies=[PROXY]).gate
    assert (tenant := behind_proxy.tenant("beta")) is not None
    assert (tenant.id, tenant.label) == ("beta", "other")
    assert behind_proxy.tenant("*") is behind_proxy.tenant("") is behind_proxy.tenant("a b") is None

    everybody = AdmissionSetup([]).gate
    assert everybody.tenant("default") == EVERYBODY.tenant
    assert everybody.tenant("acme") is None


def test_tenants_that_choose_no_mode_for_personal_data_have_the_common_one(key, acme):
    setup = AdmissionSetup([])
    gate = Authenticator(*configured([acme()]), personal_data=PersonalDataMode.BLOCK)
    assert gate.identify(request(key), "", WALL).tenant.personal_data is PersonalDataMode.BLOCK
    gate.replace(*configured([acme()]), personal_data=PersonalDataMode.OFF)
    assert gate.identify(request(key), "", WALL).tenant.personal_data is PersonalDataMode.OFF
    gate.replace(*configured([]), personal_data=PersonalDataMode.MASK)
    assert gate.identify(request(), "", WALL).tenant.personal_data is PersonalDataMode.MASK
    assert setup.caller().tenant.personal_data is PersonalDataMode.REPORT


def test_keys_stand_in_no_object(key, acme):
    setup = AdmissionSetup([acme()])
    settings = setup.gate, setup.caller(key), setup.admit(key)
    for thing in settings:
        assert key not in f"{thing!s}{thing!r}"
        assert hash_key(key)[16:] not in f"{thing!s}{thing!r}"
