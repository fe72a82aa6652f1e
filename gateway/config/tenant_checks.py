"""Checks of tenants and admission across entries."""

from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches

from gateway.config.tenants_settings import AdmissionSettings, TenantSettings, is_open
from gateway.core.tenant import ANYBODY, DEFAULT_TENANT

Mistake = tuple[tuple[str | int, ...], str]
"""Location from the top of the file, and the problem with its fix. Never a key or a hash."""


def mistakes(
    tenants: Sequence[TenantSettings],
    admission: AdmissionSettings,
    *,
    public_host: str,
    is_loopback: bool,
    forward_authorization: bool,
    models: Collection[str],
    regions: Collection[str] | None,
) -> Iterator[Mistake]:
    """Mistakes in the combination of entries, or with other parts of the file.

    Args:
        tenants: The tenants, each valid on its own.
        admission: The admission settings, valid on their own.
        public_host: Where the public port listens.
        is_loopback: Whether only this machine reaches that address.
        forward_authorization: Whether clients' ``authorization`` headers are passed to the engines.
        models: Ids of all models.
        regions: Regions of all replicas; None if they are only known when the replicas are found.
    """
    yield from _repetitions(tenants)
    yield from _unreachable(tenants, admission)
    yield from _open_doors(tenants, admission, public_host, is_loopback)
    if forward_authorization and any(tenant.keys for tenant in tenants):
        yield (
            ("relay", "forward_authorization"),
            "would hand the clients' keys for this gateway to the engines (set it to false; what an engine itself asks "
            "for is api_key of its replica)",
        )
    for t, tenant in enumerate(tenants):
        yield from _unknown_models(t, tenant, models)
        for r, region in enumerate(tenant.regions or ()):
            if regions is not None and region not in regions:
                yield ("tenants", t, "regions", r), f"no replica is in region {_named(region, regions)}"


def _repetitions(tenants: Sequence[TenantSettings]) -> Iterator[Mistake]:
    first_tenant: dict[str, int] = {}
    first_key: dict[bytes, str] = {}
    for t, tenant in enumerate(tenants):
        if first_tenant.setdefault(tenant.id, t) != t:
            yield (
                ("tenants", t, "id"),
                f"tenants[{first_tenant[tenant.id]}] has this id already (each tenant stands in the file once)",
            )
        first_name: dict[str, int] = {}
        for k, key in enumerate(tenant.keys):
            here = f"tenants[{t}].keys[{k}]"
            there = first_key.setdefault(key.digest, here)
            if there != here:
                yield (
                    ("tenants", t, "keys", k),
                    f"{there} is this key already (a key stands for one tenant; make another with "
                    "`prefix-gateway key`)",
                )
            elif first_name.setdefault(key.id, k) != k:
                yield (
                    ("tenants", t, "keys", k, "id"),
                    f"tenants[{t}].keys[{first_name[key.id]}] is named {key.id} already (the audit log could not tell "
                    "them apart)",
                )


def _unreachable(tenants: Sequence[TenantSettings], admission: AdmissionSettings) -> Iterator[Mistake]:
    if admission.trusted_proxies:
        return
    everybody_is_default = is_open(tenants, admission)
    for t, tenant in enumerate(tenants):
        if tenant.id == ANYBODY:
            yield (
                ("tenants", t, "id"),
                "`*` stands for tenants that a trusted proxy names, and there is none (set admission.trusted_proxies, "
                "or remove the entry)",
            )
        elif not tenant.keys and not (everybody_is_default and tenant.id == DEFAULT_TENANT):
            yield (
                ("tenants", t),
                f"no request can come from tenant {tenant.id}: it has no keys, and no trusted proxy could name it (add "
                "a key, made with `prefix-gateway key`, or set admission.trusted_proxies)",
            )


def _open_doors(
    tenants: Sequence[TenantSettings], admission: AdmissionSettings, public_host: str, is_loopback: bool
) -> Iterator[Mistake]:
    if not is_open(tenants, admission):
        if admission.open:
            cause = "there are trusted proxies" if admission.trusted_proxies else "tenants have keys"
            yield (
                ("admission", "open"),
                f"cannot be true where {cause}: clients have to authenticate (remove one of the two)",
            )
    elif not admission.open and not is_loopback:
        yield (
            ("server", "host"),
            f"other machines may reach server.host {public_host}, and no key is required (give tenants keys, "
            "made with `prefix-gateway key`; or, to serve everybody, set admission.open: true)",
        )


def _unknown_models(t: int, tenant: TenantSettings, models: Collection[str]) -> Iterator[Mistake]:
    for m, model in enumerate(tenant.models or ()):
        if model not in models:
            yield ("tenants", t, "models", m), f"there is no model {_named(model, models)}"
    for k, key in enumerate(tenant.keys):
        for m, model in enumerate(key.models or ()):
            location = ("tenants", t, "keys", k, "models", m)
            if model not in models:
                yield location, f"there is no model {_named(model, models)}"
            elif tenant.models is not None and model not in tenant.models:
                yield (
                    location,
                    f"tenant {tenant.id} may not use {model!r} (add it to the tenant's models, or remove it)",
                )


def _named(name: str, names: Collection[str]) -> str:
    known = sorted(filter(None, names))
    close = get_close_matches(name, known, n=1)
    if close:
        return f"{name!r} (did you mean {close[0]}?)"
    return f"{name!r}, expected one of {', '.join(known)}" if known else f"{name!r} (give the replicas there a region)"
