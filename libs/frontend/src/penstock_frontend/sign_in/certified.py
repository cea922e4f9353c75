"""Whom a client's certificate makes: a user by the listener's `principal_mapping_rules`."""

from __future__ import annotations

from penstock_core.security.principal import ANONYMOUS, Principal, user
from penstock_core.security.principal_mapping import BadRule, NoRuleMatches, PrincipalMapping
from penstock_core.security.subject import BadSubject, subject_of
from penstock_frontend.listener.listener import NotCertified
from penstock_runtime.addresses import StartupError


class Certified:
    """That of one listener. Its rules stay, its certificates do not."""

    def __init__(self, listener: str, rules: str) -> None:
        """Raises StartupError for rules that cannot be used."""
        try:
            self._mapping = PrincipalMapping(rules)
        except BadRule as error:
            raise StartupError(f"listener {listener}: principal_mapping_rules: {error}") from None

    def __call__(self, certificate: bytes | None) -> Principal:
        """The principal of whoever showed that certificate (DER). Raises NotCertified."""
        if certificate is None:
            return ANONYMOUS
        try:
            return user(self._mapping.name(subject_of(certificate)))
        except (NoRuleMatches, BadSubject) as error:
            raise NotCertified(f"its certificate makes no user: {error}") from None
