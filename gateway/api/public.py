"""The public port: requests to the engines in ``generation``, everything else on Starlette."""

from collections.abc import Collection, Mapping, Sequence

from gateway.admission import Authenticator
from gateway.api.cors import Cors, Send, is_preflight
from gateway.api.dialects import Dialect
from gateway.api.error_responses import problem_response
from gateway.api.generation import Generations
from gateway.api.routes import MoreRoutes, Receive, Scope, ServedCatalog, build_routes, refused_path, request_id_of
from gateway.core.errors import GatewayError
from gateway.core.http_methods import HttpRoutes
from gateway.core.ports import Observer


class PublicApp:
    """What the public port answers: ``generations`` generation requests, and an ASGI application the rest.

    Args:
        generations: Answers generation requests.
        gate: Authenticates clients.
        catalog: The served models, for ``/v1/models`` and ``/readyz``.
        observer: Gets refused requests.
        cors: Which web pages may use the port.
        root_path: Prefix that paths may have; empty for none.
        dialects: APIs that are translated to chat requests, by the path of their generation requests.
        more_routes: Add routes of such APIs.

    Attributes:
        generations: The same.
        cors: The same.
        root_path: The same.
        dialects: The same.
        passthrough: Further paths of the engines that are served now.
        routes: The other routes.
    """

    def __init__(
        self,
        generations: Generations,
        gate: Authenticator,
        catalog: ServedCatalog,
        *,
        observer: Observer,
        cors: Cors,
        root_path: str = "",
        dialects: Mapping[str, Dialect] | None = None,
        more_routes: Sequence[MoreRoutes] = (),
    ) -> None:
        self.generations = generations
        self.cors = cors
        self.root_path = root_path
        self.dialects = dialects or {}
        self.passthrough: Collection[str] = ()
        self._observer = observer
        explains = generations.service.explains
        self.routes: HttpRoutes = build_routes(
            catalog, gate, observer, explains=explains, dialects=self.dialects, more=more_routes
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        is_http = scope["type"] == "http"
        if is_http and len(path := scope["path"]) > 1 and path.endswith("/"):
            scope = {**scope, "path": path[:-1]}  # clients append it to paths
        if is_http and self.cors:
            send = self.cors.sending(scope["headers"], send)
        if is_http and is_preflight(scope["method"], scope["headers"]):
            await self._preflight(scope, receive, send)
        else:
            await self.routes(scope, receive, send)

    def interrupt(self) -> None:
        """Shutdown: end every open answer with an error in the API's format."""
        self.generations.interrupt()

    async def _preflight(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a CORS preflight. Needs no key, because browsers send none with it."""
        try:
            allowed = self.cors.preflight(scope["headers"])
        except GatewayError as error:
            request_id = request_id_of(dict(scope["headers"]).get(b"x-request-id", b""))
            refusal = refused_path(scope, error, request_id)
            self._observer.on_refused(refusal)
            await problem_response(error, request_id)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 204, "headers": allowed})
        await send({"type": "http.response.body", "body": b""})
