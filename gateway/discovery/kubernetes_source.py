"""Replicas from the endpoint slices of a Kubernetes service: listed once, then watched.

As the API's own clients do: a list has a version, and a watch reports every change since a version. If a version is too
old (status 410), the list is read again; a watch that ends, as the API ends all of them after a while, is resumed at
its last version.
"""

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson

from gateway.config.discovery_settings import KubernetesSettings, TemplateSettings
from gateway.discovery.discovered import DiscoveredReplica, SourceFailed
from gateway.discovery.endpoint_slices import Slices, read_slice

_WATCH_SECONDS = 60
"""How long one watch lasts; a silently broken connection is detected after that."""

_SHORTEST_SECONDS = 1.0
"""Least time between two watches, in case the API or a proxy ends them at once."""

_LIMITS = httpx.Timeout(10, read=_WATCH_SECONDS + 15)
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LIST_SECONDS = 30
_MAX_BYTES = 16 * 2**20
"""Limit of a list of endpoint slices, and of one change. A slice with a hundred endpoints has 60 KiB; etcd stores no
object above 1.5 MiB."""

_GONE = 410
_MAX_SHOWN = 300
_FIXES = {
    401: "check that token_file holds a service account's token",
    403: "let the gateway's service account get, list and watch endpointslices (discovery.k8s.io) there",
    404: "check that api_url and namespace are right",
}


class _VersionGone(Exception):
    """The API no longer has the changes since a version."""


class KubernetesSource:
    """A ``ReplicaSource``.

    Args:
        settings: The service.
        template: Settings of the replicas besides their address.
        environ: Environment variables with the address of the cluster's API.
    """

    def __init__(
        self, settings: KubernetesSettings, template: TemplateSettings, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._settings = settings
        self._template = template
        self._environ = environ
        self._slices = Slices()
        self._version = ""

    async def answers(self) -> AsyncGenerator[Sequence[DiscoveredReplica], None]:
        """See ``ReplicaSource``."""
        async with await asyncio.to_thread(self._client) as client:
            path = f"/apis/discovery.k8s.io/v1/namespaces/{await asyncio.to_thread(self._namespace)}/endpointslices"
            while True:
                began = time.monotonic()
                try:
                    if not self._version:
                        await self._list(client, path)
                    # Also after a broken watch, so that the source can be iterated again.
                    yield self._slices.found(self._settings, self._template)
                    async with contextlib.aclosing(self._watch(client, path)) as changes:
                        async for _ in changes:
                            yield self._slices.found(self._settings, self._template)
                except _VersionGone:
                    self._version = ""
                except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                    raise SourceFailed(f"the Kubernetes API does not answer: {_words(error)}") from error
                await asyncio.sleep(max(began + _SHORTEST_SECONDS - time.monotonic(), 0))

    def _client(self) -> httpx.AsyncClient:
        settings = self._settings
        verify: ssl.SSLContext | bool = True
        if settings.ca_file.is_file():
            try:
                verify = ssl.create_default_context(cafile=settings.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise SourceFailed(f"ca_file {settings.ca_file} cannot be used: {error}") from error
        url = settings.api_url or _api_url(self._environ)
        return httpx.AsyncClient(base_url=url, verify=verify, timeout=_LIMITS, trust_env=False)

    def _namespace(self) -> str:
        if self._settings.namespace is not None:
            return self._settings.namespace
        try:
            return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
        except OSError:
            raise SourceFailed("namespace is not set, and the gateway does not run in a pod, which has it") from None

    async def _list(self, client: httpx.AsyncClient, path: str) -> None:
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                headers = await self._headers()
                async with client.stream("GET", path, params=self._selected(), headers=headers) as answer:
                    content = await _content(answer)
        except TimeoutError as error:
            raise SourceFailed(f"the Kubernetes API did not answer within {_LIST_SECONDS} seconds") from error
        _check(answer.status_code, content)
        listed = _object(content)
        self._slices.replace(listed.get("items") or ())
        self._version = _version(listed)

    async def _watch(self, client: httpx.AsyncClient, path: str) -> AsyncGenerator[None, None]:
        """Changes since ``_version``, until the API ends the watch."""
        params = self._selected() | {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        async with client.stream("GET", path, params=params, headers=await self._headers()) as answer:
            if answer.status_code != httpx.codes.OK:
                _check(answer.status_code, await _content(answer))
            async for line in _lines(answer):
                if not line.strip():
                    continue
                event = _object(line)
                kind, item = event.get("type"), event.get("object")
                if kind == "ERROR":
                    code = item.get("code") if isinstance(item, dict) else None
                    if code == _GONE:
                        raise _VersionGone
                    # On any other error start again with the list, which is complete.
                    self._version = ""
                    raise SourceFailed(f"the Kubernetes API ended the watch: {_message(line)}")
                if kind == "BOOKMARK":
                    self._version = read_slice(item).metadata.resource_version or self._version
                elif kind in ("ADDED", "MODIFIED", "DELETED"):
                    self._version = self._slices.change(kind, item) or self._version
                    yield

    def _selected(self) -> dict[str, str]:
        return {"labelSelector": f"kubernetes.io/service-name={self._settings.service}"}

    async def _headers(self) -> dict[str, str]:
        """Read each time: tokens are rotated every hour."""
        headers = {"accept-encoding": "identity"}
        with contextlib.suppress(OSError, UnicodeDecodeError):
            token = await asyncio.to_thread(self._settings.token_file.read_text, encoding="utf-8")
            headers["authorization"] = f"Bearer {token.strip()}"
        return headers


async def _pieces(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body as it was sent. It is not decompressed: a few bytes could become any number."""
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise SourceFailed("the Kubernetes API compressed its answer although it was asked not to")
    async for piece in answer.aiter_raw():
        yield piece


async def _content(answer: httpx.Response) -> bytes:
    content = bytearray()
    async with contextlib.aclosing(_pieces(answer)) as pieces:
        async for piece in pieces:
            content += piece
            if len(content) > _MAX_BYTES:
                raise SourceFailed(f"the Kubernetes API answered more than {_MAX_BYTES >> 20} MiB")
    return bytes(content)


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The lines of a body. Each byte is searched once, however small the pieces are."""
    held = bytearray()
    async with contextlib.aclosing(_pieces(answer)) as pieces:
        async for piece in pieces:
            searched = len(held)
            held += piece
            start = 0
            while (end := held.find(b"\n", max(start, searched))) >= 0:
                _check_size(line := held[start:end])
                yield bytes(line)
                start = end + 1
            del held[:start]
            _check_size(held)
    yield bytes(held)


def _check_size(line: bytearray) -> None:
    if len(line) > _MAX_BYTES:
        raise SourceFailed(f"a change that the Kubernetes API sent has more than {_MAX_BYTES >> 20} MiB")


def _api_url(environ: Mapping[str, str]) -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SourceFailed("the gateway does not run in Kubernetes (KUBERNETES_SERVICE_HOST is not set): set api_url")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _check(status: int, body: bytes) -> None:
    if status == _GONE:
        raise _VersionGone
    if status != httpx.codes.OK:
        fix = f" ({_FIXES[status]})" if status in _FIXES else ""
        raise SourceFailed(f"the Kubernetes API answered {status}: {_message(body)}{fix}")


def _object(text: bytes | str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise SourceFailed("the Kubernetes API answered with something else than a JSON object")
    return value


def _version(listed: Mapping[str, Any]) -> str:
    metadata = listed.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise SourceFailed("the Kubernetes API sent a list without its version")
    return version


def _message(body: bytes | str) -> str:
    """The message of an error of the API; it never contains the token."""
    try:
        status = orjson.loads(body)
        status = status.get("object", status)
        return str(status["message"])[:_MAX_SHOWN]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return "no reason given"


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
