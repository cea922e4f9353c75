"""One gateway: the shipped relay, flight tables, metadata client and registration.

Its Kafka listener is a stand-in, see `connections`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_core.metadata.image import Endpoint
from penstock_core.security.quota_book import QuotaBook
from penstock_frontend.authorizer import AllowAll, Authorizer
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_gateway.metrics import GatewayMetrics
from penstock_gateway.ports import GatewayPorts
from penstock_gateway.registration import Registration
from penstock_gateway.relay.relay import Relay
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.metadata_client import MetadataClient
from simulation.checked import CheckedControllerClient
from simulation.controller_host import GRPC_PORT
from simulation.process import Process
from simulation.rpc import SimChannelPool, SimServer

if TYPE_CHECKING:
    from simulation.world import World

GATEWAY_PORT = 7000


class GatewayProcess(Process):
    """A run of the gateway on host `g<id>`."""

    def __init__(self, world: World, gateway_id: int) -> None:
        super().__init__(world, f"g{gateway_id}")

    def start(self) -> None:
        self.spawn(self._run())

    async def _run(self) -> None:
        ports = self._ports()
        channels = ports.channels()
        clock_ms = ports.clocks.ms
        addresses = [f"{i}@c{i}:{GRPC_PORT}" for i in self.world.controller_ids]
        self.controllers = ports.controllers(
            addresses, self.name, channels, clock_ms=clock_ms, rng=ports.new_rng()
        )
        self.metadata = MetadataClient(
            self.controllers,
            self.name,
            clock_ms,
            log=self.log,
            rng=ports.new_rng(),
            freeze=ports.freeze,
        )
        checker = self.world.checker
        self.metadata.on_change(lambda _old, new, _records: checker.on_node_image(self.name, new))
        kafka_metrics = KafkaMetrics()
        metrics = GatewayMetrics(kafka_metrics, self.metadata.contact_age_ms, lambda: 0.0)
        rights = self.world.rights
        authorizer: Authorizer = AllowAll()
        self.quotas: QuotaGate | None = None
        if rights is not None:
            by_acl = authorizer = rights.authorizer()
            self.metadata.on_change(by_acl.metadata_changed)  # before anybody who asks, as in the role
            self.quotas = QuotaGate(QuotaBook(), clock_ms, kafka_metrics)
            self.metadata.on_change(self.quotas.metadata_changed)
        self.relay = Relay(
            self.name,
            self.metadata,
            channels,
            metrics,
            authorizer,
            self.lifecycle,
            clock_ms,
            ports.tick_ms,
        )
        self.producer_ids = ProducerIdAllocator(self.controllers, self.name)
        self.metadata.on_change(self.producer_ids.metadata_changed)
        # The controllers probe this port.
        SimServer(self, f"{self.name}:{GATEWAY_PORT}")
        registration = Registration(
            self._request, self.controllers, self.metadata, self.lifecycle, self.quotas
        )
        self.lifecycle.create_task(self.metadata.run(), "metadata")
        self.relay.start()
        self.lifecycle.create_task(registration.run(), "registration")

    def _ports(self) -> GatewayPorts:
        ports: dict[str, Any] = {
            "clocks": self.clocks,
            "new_rng": self.new_rng,
            "freeze": lambda: None,
            "channels": lambda *_, **__: SimChannelPool(self),
            "controllers": CheckedControllerClient,
            "tick_ms": 100,
        }
        return GatewayPorts(**ports)

    def _request(self) -> pb.RegisterGatewayRequest:
        return pb.RegisterGatewayRequest(
            gateway_id=self.name,
            process=self.lifecycle.process_info(),
            grpc=Endpoint("", self.name, GATEWAY_PORT).to_pb(),
        )

    @property
    def is_serving(self) -> bool:
        return self.is_up and hasattr(self, "relay") and bool(self.metadata.image.cluster_id)

    @property
    def is_serving_calls(self) -> bool:
        return hasattr(self, "controllers")

    def end(self) -> None:
        """SIGKILL."""
        self.kill()
        server = self.world.servers.get(f"{self.name}:{GATEWAY_PORT}")
        if server is not None and server.process is self:
            server.stop()
        self.drop_connections()
