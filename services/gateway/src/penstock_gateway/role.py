"""The gateway's life: find the cluster, open the doors, be named, drain, leave.

Start: HTTP first (so that a probe is told why it isn't ready), then metadata, then the
Kafka listeners and the native API, then registration; ready once the registration is
seen in the metadata. Doors open only with metadata at hand: an empty cluster is the one
answer that clients take badly. Taken ports are found before that wait.

Ready means: the controllers were heard of within `stale_after_ms`. A cluster without a
live node leaves the gateway ready: it answers rightly that nobody leads, and taking it
out of a balancer would help nobody.

End: leave the metadata (other gateways name it no more) and serve on for `drain_delay_ms`, so
that balancers notice; where others are named, move clients to them (`Relay.hands_over`); close the listeners
after their responses, end native calls, close the relay.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Final

from penstock_core.addresses import WILDCARD_HOSTS, parse_address
from penstock_core.errors import PenstockError
from penstock_core.metadata.image import Endpoint, MetadataImage, NodeImage
from penstock_core.security.quota_book import QuotaBook
from penstock_frontend.acl_authorizer import AclAuthorizer
from penstock_frontend.authorizer import AllowAll, Authorizer
from penstock_frontend.cluster.apis import ApiOptions, ClusterApis
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_frontend.sign_in.doors import GRPC, HTTP, Doors
from penstock_frontend.sign_in.http import http_desk
from penstock_frontend.suspected_leaders import SuspectedLeaders
from penstock_gateway.http.operations import operation_routes
from penstock_gateway.http.rest import routes
from penstock_gateway.kafka.handler import GatewayHandler
from penstock_gateway.metrics import GatewayMetrics
from penstock_gateway.ports import GatewayPorts
from penstock_gateway.registration import Registration
from penstock_gateway.relay.relay import Relay
from penstock_gateway.routing.addresses import MODE_DIRECT, AddressBook, AddressView, Arrival, OwnListener
from penstock_gateway.routing.client_networks import default_gateways, for_registration, rules_of
from penstock_gateway.routing.node_spread import pick
from penstock_gateway.rpc.admin import AdminService
from penstock_gateway.rpc.guard import Guard
from penstock_gateway.rpc.service import GatewayService
from penstock_gateway.settings import GatewaySettings
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import RELAYED_ROUTES, ROUTES, SUPPORTED, Route, intersect
from penstock_proto.v1 import controller_pb2, metadata_pb2
from penstock_runtime.addresses import (
    StartupError,
    advertised_endpoint,
    check_bind,
    check_free,
)
from penstock_runtime.audit import audit_of
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_server import GrpcServer
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.roles import Role
from penstock_runtime.security.callers import gateway_name_fault
from penstock_runtime.security.own_certificate import follow_refused, open_certificate, watch_certificate
from penstock_runtime.self_description import SelfDescription
from penstock_runtime.settings import ListenerSettings
from penstock_runtime.tracing import tracing_of
from penstock_runtime.turns import LoopTurns

_REAL: Final = GatewayPorts()
_WATCH_S: Final = 0.5
_WAIT_METADATA_MS: Final = 1_000
_CATCH_UP_MS: Final = 5_000
"""How long a start waits for the newest metadata when no quorum answers."""
_LEAVE_MS: Final = 1_000
_LISTENER_STOP_MS: Final = 3_000
_HAND_OVER_MS: Final = 600
"""Who waits for records as long as clients do by default (500) asks once more in it."""
_GRPC_STOP_S: Final = 2.0
_ROUTE_TABLE: Final = Path("/proc/net/route")


class GatewayAddresses:
    """`AddressView` for `ClusterApis`: addresses by client network, versions by the nodes.

    With `apart` no two nodes have the same host and port (see `routing.address_aliases`).
    """

    def __init__(self, book: AddressBook, image: Callable[[], MetadataImage], *, apart: bool = False) -> None:
        self._apart = apart
        self._book = book
        self._image = image
        self._apis_of: object = None
        self._apis: Mapping[int, tuple[int, int]] = SUPPORTED

    def node_address(self, connection: Connection, node: NodeImage) -> tuple[str, int] | None:
        """Where that client finds the node."""
        view = self._view(connection)
        return (view.apart if self._apart else view.addresses).get(node.node_id)

    def view_key(self, connection: Connection) -> Hashable:
        """Clients to whom nodes are at the same addresses."""
        return self._view(connection).key

    def _view(self, connection: Connection) -> AddressView:
        arrival = Arrival(
            connection.listener, connection.peer_host, connection.local_host, connection.local_port
        )
        return self._book.view(self._image(), arrival)

    def apis(self, image: MetadataImage) -> Mapping[int, tuple[int, int]]:
        """What this gateway and every registered node answer; relayed APIs alone depend on nodes."""
        if image.nodes is not self._apis_of:
            self._apis_of = image.nodes
            self._apis = advertised_apis(image)
        return self._apis


def advertised_apis(image: MetadataImage) -> dict[int, tuple[int, int]]:
    """Our own ranges, with those of relayed APIs cut down to what all registered nodes answer.

    APIs addressed to a node that only the connection names are left out (rule "A connection names
    no node").
    """
    own = {key: versions for key, versions in SUPPORTED.items() if ROUTES[key] is not Route.NODE}
    relayed = {k: v for k, v in own.items() if ROUTES[k] in RELAYED_ROUTES}
    # A node that said nothing of its APIs takes nothing away.
    nodes = [n.apis for n in image.nodes.values() if n.apis]
    common = intersect([relayed, *nodes])
    return {k: common[k] if k in relayed else v for k, v in own.items() if k not in relayed or k in common}


def has_shrunk(before: Mapping[int, tuple[int, int]], after: Mapping[int, tuple[int, int]]) -> bool:
    """Whether a client that negotiated `before` may use a version that is gone."""
    return any(
        key not in after or after[key][0] > low or after[key][1] < high for key, (low, high) in before.items()
    )


class Gateway:
    """Everything that one gateway process has open."""

    def __init__(self, settings: GatewaySettings, lifecycle: Lifecycle, ports: GatewayPorts = _REAL) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._ports = ports
        self._doors = Doors(
            settings.listeners,
            lifecycle,
            settings.oauth,
            grpc=settings.grpc_door,
            http=settings.http_door,
            stale_ms=settings.stale_ms,
        )
        self._tls = open_certificate(
            settings.tls, ROLE.name, lambda identity: gateway_name_fault(identity, settings.gateway_id)
        )
        self._channels = ports.channels(tls=self._tls)
        self._controllers = self._controller_client()
        self._metadata = MetadataClient(
            self._controllers,
            settings.gateway_id,
            ports.clocks.ms,
            log=lifecycle.log,
            rng=ports.new_rng(),
            freeze=ports.freeze,
        )
        kafka_metrics = KafkaMetrics.of(lifecycle)
        self._metrics = GatewayMetrics(kafka_metrics, self._metadata.contact_age_ms, ports.clocks.s)
        lifecycle.registry.register(self._metrics)
        by_acl = settings.acl_authorizer(lifecycle.log, audit_of(lifecycle))
        if by_acl is not None:
            self._metadata.on_change(by_acl.metadata_changed)  # first of all: nobody asks by older rights
        self._authorizer: Authorizer = by_acl or AllowAll()
        self._quotas = QuotaGate(QuotaBook(), ports.clocks.ms, kafka_metrics)
        self._metadata.on_change(self._quotas.metadata_changed)
        follow_refused(self._tls, self._metadata)
        self._relay = Relay(
            settings.gateway_id,
            self._metadata,
            self._channels,
            self._metrics,
            self._authorizer,
            lifecycle,
            ports.clocks.ms,
            ports.tick_ms,
        )
        self._relay.quotas = self._quotas
        self._own = {s.name: _own_listener(s, parse_address(s.bind).port) for s in settings.listeners}
        self._book = AddressBook(settings.gateway_id, self._own, _host_gateways())
        self._addresses = GatewayAddresses(self._book, lambda: self._metadata.image)
        self._producer_ids = ProducerIdAllocator(self._controllers, settings.gateway_id)
        self._metadata.on_change(self._producer_ids.metadata_changed)
        self._bound: dict[str, Endpoint] = {}
        self._grpc_endpoint = Endpoint("", "", 0)
        self._http_endpoint = Endpoint("", "", 0)
        self._open_doors(kafka_metrics, by_acl)
        self._registration = Registration(
            self._registration_request, self._controllers, self._metadata, lifecycle, self._quotas
        )

    def _controller_client(self) -> ControllerClient:
        settings, ports = self._settings, self._ports
        try:
            return ports.controllers(
                settings.controllers,
                settings.gateway_id,
                self._channels,
                clock_ms=ports.clocks.ms,
                rng=ports.new_rng(),
            )
        except PenstockError as e:
            raise StartupError(f"controllers: {e.message}") from None

    def _open_doors(self, metrics: KafkaMetrics, by_acl: AclAuthorizer | None) -> None:
        """What clients come to: the Kafka listeners, the native API's door and HTTP."""
        settings, lifecycle, ports = self._settings, self._lifecycle, self._ports
        suspected_leaders = SuspectedLeaders(self._metadata, ports.clocks.ms)
        self._relay.on_stream_lost = suspected_leaders.suspect
        options = ApiOptions(
            controller_id=_named_controller,
            suspected_leaders=suspected_leaders,
            auto_create=settings.auto_create_topics,
            wall_ms=ports.clocks.wall_ms,
            turns=LoopTurns.of(lifecycle),
            quotas=self._quotas,
        )
        apart = GatewayAddresses(self._book, lambda: self._metadata.image, apart=True)
        cluster, cluster_apart = (
            ClusterApis(
                self._metadata,
                self._controllers,
                self._producer_ids,
                addresses,
                self._authorizer,
                metrics,
                options,
            )
            for addresses in (self._addresses, apart)
        )
        handler = GatewayHandler(self._relay, cluster, cluster_apart, tracing_of(lifecycle))
        self._have_offsets_topic = cluster.have_offsets_topic
        limits = settings.listener_limits()
        self._doors.connect(self._metadata, cluster.api_versions, by_acl)
        self._grpc_door, http_door = self._doors.grpc_door(), self._doors.http_door()
        self._listeners = [
            ports.listener(s, handler, lifecycle, limits, **self._doors.of(s), quotas=self._quotas)
            for s in settings.listeners
        ]
        self._http = ports.http(
            settings.http_bind,
            lifecycle,
            [
                *operation_routes(
                    lambda: self._metadata.image, self._authorizer, self._controllers, LoopTurns.of(lifecycle)
                ),
                *routes(lambda: self._metadata.image, self._metadata.contact_age_ms, self._authorizer),
            ],
            **http_desk(http_door, self._doors.tls_files(HTTP), self._authorizer, self._own_names),
        )

    async def run(self) -> None:
        """Serve until told to stop, then drain."""
        lifecycle, settings = self._lifecycle, self._settings
        self._check_ports()
        self._http_endpoint = await self._http.start()
        lifecycle.set_not_ready("waiting for the controllers")
        self._metadata.on_change(lambda old, new, _: self._image_changed(old, new))
        watch_certificate(self._tls, lifecycle)
        lifecycle.create_task(self._metadata.run(), "metadata")
        grpc_server = None
        try:
            if not await self._first_image():
                return
            codec.preload()
            for listener in self._listeners:
                bound = self._bound[listener.name] = await listener.start()
                own = self._own[listener.name] = _own_listener(listener.settings, bound.port)
                hosts = {rule.host or bound.host for rule in own.rules}
                self._doors.check_names(listener.name, hosts - WILDCARD_HOSTS)
            self._doors.start(self._listeners)
            grpc_server, grpc_bound = await self._serve_grpc()
            self._grpc_endpoint = advertised_endpoint(settings.grpc_advertised, grpc_bound)
            self._doors.check_names(GRPC, {self._grpc_endpoint.host} - WILDCARD_HOSTS)
            self._relay.start()
            lifecycle.create_task(self._registration.run(), "registration")
            lifecycle.create_task(self._watch_contact(), "readiness")
            await lifecycle.stopping.wait()
            lifecycle.set_not_ready("stopping")
            self._book.leave()
            # Balancers send clients here until they have asked whether it is ready.
            await asyncio.gather(
                self._registration.leave(_LEAVE_MS), asyncio.sleep(settings.drain_delay_ms / 1000)
            )
            await self._hand_over()
            await asyncio.gather(*(listener.stop(_LISTENER_STOP_MS) for listener in self._listeners))
        finally:
            if grpc_server is not None:
                await grpc_server.stop(_GRPC_STOP_S)
            self._relay.stop()
            await self._producer_ids.close()
            await self._http.stop()
            await self._channels.close()

    async def _hand_over(self) -> None:
        """Let clients find the gateways that are named in place of this one, if there are any of either."""
        others = self._metadata.image.gateways.keys() - {self._settings.gateway_id}
        if others and any(listener.connections for listener in self._listeners):
            self._relay.hands_over = True
            await asyncio.sleep(_HAND_OVER_MS / 1000)

    async def _serve_grpc(self) -> tuple[GrpcServer, Endpoint]:
        settings, clocks = self._settings, self._ports.clocks
        service = GatewayService(
            self._relay,
            lambda: self._grpc_endpoint,
            settings.socket_request_max_bytes,
            self._grpc_door,
            self._controllers,
            self._have_offsets_topic,
            {each.name: each.security for each in settings.listeners if each.mode == MODE_DIRECT},
        )
        admin = AdminService(
            self._relay,
            self._controllers,
            LoopTurns.of(self._lifecycle),
            clocks.wall_ms,
            SelfDescription(self._lifecycle),
        )

        def add_services(server: Any) -> None:
            service.add_to(server)
            admin.add_to(server)

        return await self._ports.serve(
            settings.grpc_bind,
            add_services,
            allow_insecure_bind=self._grpc_door.settings.may_face_others or settings.plaintext,
            door=self._doors.tls_files(GRPC),
            bounds=settings.grpc_bounds,
            interceptors=[
                Guard(
                    self._grpc_door,
                    clocks.wall_ms,
                    on_call=self._metrics.observe_native,
                    clock_s=clocks.s,
                )
            ],
        )

    def _check_ports(self) -> None:
        """Find a taken or forbidden port before the wait for controllers."""
        settings = self._settings
        binds = [(f"listener {s.name}: bind", s.bind, s.may_face_others) for s in settings.listeners]
        for setting, bind, secure in [
            *binds,
            ("grpc_bind", settings.grpc_bind, self._grpc_door.settings.may_face_others),
        ]:
            allowed = secure or settings.plaintext
            check_free(check_bind(bind, setting, allow_insecure_bind=allowed), setting)

    async def _first_image(self) -> bool:
        """Wait for metadata; False when told to stop before any came."""
        while not self._lifecycle.stopping.is_set():
            if await self._metadata.wait_for_version(1, _WAIT_METADATA_MS):
                await self._catch_up()
                return True
        return False

    async def _catch_up(self) -> None:
        """Wait for all that is committed, for a while; what is known by then has to do without a quorum.

        Controllers that have just started show their past while they replay it, and clients
        would be told that topics do not exist which they saw created.
        """
        request = controller_pb2.AlterConfigsRequest()  # changes nothing: answered after a committed no-op
        try:
            response: controller_pb2.AlterConfigsResponse = await self._controllers.call(
                "AlterConfigs", request, timeout_ms=_CATCH_UP_MS
            )
        except PenstockError as e:
            self._lifecycle.log.warning("serving metadata that may be old", reason=e.message)
            return
        await self._metadata.wait_for_version(response.version, _CATCH_UP_MS)

    def _image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        before = self._addresses.apis(old)
        if old.nodes is not new.nodes and has_shrunk(before, self._addresses.apis(new)):
            self._lifecycle.log.info("fewer api versions: clients negotiate again", version=new.version)
            for listener in self._listeners:
                listener.close_connections("fewer api versions are supported now")

    async def _watch_contact(self) -> None:
        """Ready while registered once and in touch with the controllers."""
        lifecycle, settings = self._lifecycle, self._settings
        await self._registration.registered.wait()
        while not lifecycle.stopping.is_set():
            age_ms = self._metadata.contact_age_ms()
            if age_ms > settings.stale_after_ms:
                lifecycle.set_not_ready(
                    f"no controller heard of for more than stale_after_ms = {settings.stale_after_ms}"
                )
            else:
                lifecycle.set_ready()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await lifecycle.stopping.wait()

    def _own_names(self) -> set[str]:
        """Hosts that clients are told of this gateway."""
        told = {rule.host for own in self._own.values() for rule in own.rules}
        return told | {self._grpc_endpoint.host, *(each.host for each in self._bound.values())}

    def _registration_request(self) -> controller_pb2.RegisterGatewayRequest:
        return controller_pb2.RegisterGatewayRequest(
            cluster_id=self._metadata.image.cluster_id,
            gateway_id=self._settings.gateway_id,
            process=self._lifecycle.process_info(),
            listeners=[
                metadata_pb2.GatewayListener(
                    name=s.name,
                    mode=s.mode,
                    security=s.security,
                    advertised=for_registration(
                        self._own[s.name].rules, self._bound[s.name].host, self._bound[s.name].port
                    ),
                )
                for s in self._settings.listeners
            ],
            grpc=self._grpc_endpoint.to_pb(),
            http=self._http_endpoint.to_pb(),
        )


def _named_controller(image: MetadataImage) -> int:
    """The node that clients are told is the controller: any that this gateway answers for."""
    live = [n.node_id for n in image.nodes.values() if n.active]
    chosen = pick(0, live)
    return -1 if chosen is None else chosen


def _own_listener(settings: ListenerSettings, port: int) -> OwnListener:
    rules = rules_of(settings.advertised_by_network(), port)
    return OwnListener(settings.name, settings.mode, rules, settings.security)


def _host_gateways() -> frozenset[str]:
    """This host's default gateways; none where the kernel has no such table."""
    try:
        return default_gateways(_ROUTE_TABLE.read_text("ascii"))
    except (OSError, UnicodeDecodeError):
        return frozenset()


async def run(settings: GatewaySettings, lifecycle: Lifecycle) -> None:
    """Entry point of the role."""
    lifecycle.bind_identity(settings.gateway_id)
    await Gateway(settings, lifecycle).run()


ROLE = Role("gateway", GatewaySettings, run, "the address that clients dial")
