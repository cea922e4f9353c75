"""What the installed roles can be set to, for `--set`."""

from __future__ import annotations

from penstock.errors import CommandError, ExitCode
from penstock.local import plan


def role_fields() -> dict[str, set[str]]:
    """Names of the settings of each role, from the roles that are installed."""
    from importlib.metadata import entry_points

    found: dict[str, set[str]] = {}
    for entry in entry_points(group="penstock.roles"):
        if entry.name in plan.ROLES:
            fields = set(entry.load().settings.model_fields)
            if plan.LISTENERS in fields:
                from penstock_runtime.listener_settings import ListenerSettings

                fields |= {f"{plan.LISTENERS}.{key}" for key in ListenerSettings.model_fields}
            found[entry.name] = fields
    missing = [role for role in plan.ROLES if role not in found]
    if missing:
        raise CommandError(
            f"{', '.join(missing)} is not installed: pip install 'penstock[local]'", ExitCode.FAILED
        )
    return found
