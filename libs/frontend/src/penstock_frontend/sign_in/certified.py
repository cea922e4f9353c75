"""Whom a client's certificate makes: a user by the listener's `principal_mapping_rules`.

Where clients sign in by SASL a certificate makes nobody, and is looked at only for whether it is refused.
"""

from __future__ import annotations

from collections import defaultdict

from penstock_core.security.principal import ANONYMOUS, Principal, user
from penstock_core.security.principal_mapping import BadRule, NoRuleMatches, PrincipalMapping
from penstock_core.security.serial_number import serial_of
from penstock_core.security.subject import BadSubject, subject_of
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.listener import NotCertified
from penstock_frontend.sign_in.credentials import end_soon
from penstock_runtime.addresses import StartupError
from penstock_runtime.security.refused import RefusedCertificates


class Holders:
    """Connections whose clients showed a certificate, by its serial number; of all listeners of a process."""

    def __init__(self, refused: RefusedCertificates) -> None:
        self.refused = refused
        self._by_serial: defaultdict[str, set[Connection]] = defaultdict(set)
        refused.on_change(self._look)

    def admit(self, serial: str, connection: Connection | None) -> None:
        """A client has come with that certificate. Raises NotCertified."""
        fault = self.refused.fault(serial)
        if fault:
            raise NotCertified(fault)
        if connection is None:
            return
        self._by_serial[serial].add(connection)
        connection.on_closed(lambda: self._remove(serial, connection))

    def _remove(self, serial: str, connection: Connection) -> None:
        left = self._by_serial[serial]
        left.discard(connection)
        if not left:
            del self._by_serial[serial]

    def _look(self) -> None:
        for serial, connections in list(self._by_serial.items()):
            if self.refused.fault(serial):
                for connection in list(connections):
                    end_soon(connection, "its certificate is refused")


class Certified:
    """That of one listener. Its rules stay, its certificates do not."""

    def __init__(self, listener: str, rules: str | None, holders: Holders | None = None) -> None:
        """Without rules a certificate makes nobody. Raises StartupError for rules that cannot be used."""
        self._holders = holders or Holders(RefusedCertificates())
        try:
            self._mapping = None if rules is None else PrincipalMapping(rules)
        except BadRule as error:
            raise StartupError(f"listener {listener}: principal_mapping_rules: {error}") from None

    def __call__(self, certificate: bytes | None, connection: Connection | None = None) -> Principal:
        """The principal of whoever showed that certificate (DER). Raises NotCertified.

        `connection` is closed when the certificate is refused later; without one it is asked for each call.
        """
        if certificate is None:
            return ANONYMOUS
        try:
            principal = (
                ANONYMOUS if self._mapping is None else user(self._mapping.name(subject_of(certificate)))
            )
            serial = serial_of(certificate)
        except (NoRuleMatches, BadSubject) as error:
            raise NotCertified(f"its certificate makes no user: {error}") from None
        self._holders.admit(serial, connection)
        return principal
