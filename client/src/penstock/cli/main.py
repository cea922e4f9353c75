"""The entry of `penstock`: the tree of commands, and the one place where failures become exit codes.

Commands are imported when they are called (`_LazyGroup`), because `penstock --help` and
`penstock local status` should not pay for a Kafka client.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from penstock import __version__
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

COMMANDS = {
    "local": ("penstock.cli.local", "A whole cluster on this machine: start, break, mend and stop it."),
    "topic": ("penstock.cli.topic", "Create, list, describe, change and delete topics."),
    "group": ("penstock.cli.group", "List, describe, reset and delete consumer groups."),
    "transaction": (
        "penstock.cli.transaction",
        "Transactions: who has some, what hangs, and an end for that.",
    ),
    "config": ("penstock.cli.config", "Show and change settings of topics, nodes, the cluster and groups."),
    "feature": (
        "penstock.cli.feature",
        "Features: what the cluster has agreed on, and what its processes know.",
    ),
    "user": (
        "penstock.cli.user",
        "Users that sign in with a password: add, list, delete, and new passwords.",
    ),
    "acl": ("penstock.cli.acl", "ACLs: who may do what, from where."),
    "quota": ("penstock.cli.quota", "Client quotas: set, list and unset."),
    "produce": ("penstock.cli.produce", "Send lines to a topic, acknowledged by every in-sync replica."),
    "consume": ("penstock.cli.consume", "Read records of a topic."),
    "cluster": ("penstock.cli.cluster", "The cluster as a whole."),
    "node": ("penstock.cli.node", "Storage nodes."),
    "leader": ("penstock.cli.leader", "Leaders of partitions."),
    "scale": ("penstock.cli.scale", "More or fewer storage nodes and gateways, and the data with them."),
    "operation": (
        "penstock.cli.operation",
        "Operations: planned changes of the cluster, how far they are, and pause, resume, cancel.",
    ),
    "explain": (
        "penstock.cli.explain",
        "What is the matter with a partition, a node or an operation, and how it came to that.",
    ),
    "controller": ("penstock.cli.controller", "Controllers: who votes, and a new disk for one of them."),
    "debug": (
        "penstock.cli.debug",
        "For those who look for a fault: what a cluster tells of itself, in one file.",
    ),
    "spark": (
        "penstock.cli.spark",
        "Spark: jobs on topics, the offsets that checkpoints hold, and exactly-once sinks.",
    ),
    "cert": ("penstock.cli.cert", "Certificates: the cluster's CA, and one for each process."),
}


class _LazyGroup(click.Group):
    """A group whose commands are modules: named at once, imported when used."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).COMMAND
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name][0]}.COMMAND is no command")
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="penstock")
def cli() -> None:
    """Penstock: event streaming in Python that any Kafka client can talk to.

    \b
    Examples:
      penstock local up                          start a cluster on this machine
      penstock topic create flights -p 6         make a topic
      seq 1000 | penstock produce flights        send lines
      penstock consume flights --from earliest   read them
      penstock local down                        stop it; the data stays

    \b
    Exit codes: 0 done; 1 it failed, and the line on stderr says why; 2 a bad option or
    argument; 3 no broker, gateway or controller could be reached; 4 a gate refused a planned change,
    nothing was changed, or a job found something; 5 --wait ran out and the operation goes on; 130 interrupted.

    Commands that talk to a cluster take --bootstrap, or PENSTOCK_BOOTSTRAP from the
    environment; without either they take the running local cluster in --dir (.penstock), or
    127.0.0.1:9092. An address has 3 s to take a connection and 10 s for its first answer;
    PENSTOCK_TIMEOUT_S sets both. Planned changes (`penstock node drain` and the like) go by gRPC: --gateway or
    PENSTOCK_GATEWAY names a gateway, or one is found in the same way.

    Where clients sign in, --client-config FILE (or PENSTOCK_CLIENT_CONFIG) is a Kafka client's
    properties; in the directory of `penstock local up --secure` its admin's is found.

    \b
      bootstrap.servers=kafka.example.com:9092
      security.protocol=SASL_SSL
      sasl.mechanism=SCRAM-SHA-512
      sasl.username=alice
      sasl.password=...
      ssl.ca.location=/etc/penstock/ca.pem
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code. Nothing but a bug gets past it as an exception."""
    try:
        result = cli.main(arguments, prog_name="penstock", standalone_mode=False)
    except CommandError as error:
        _complain(error.message)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except click.UsageError as error:
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        _complain(f"{error.format_message().rstrip('.')}{hint}")
        return ExitCode.USAGE
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is wrong, and nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        if os.environ.get("PENSTOCK_DEBUG"):
            raise
        _complain(
            f"a fault of penstock itself: {type(error).__name__}: {error}; PENSTOCK_DEBUG=1 shows where"
        )
        return ExitCode.FAILED
    return result if isinstance(result, int) else ExitCode.OK


def main() -> int:
    """Console script."""
    return run()


def _complain(message: str) -> None:
    label = click.style("error:", fg="red", bold=True) if sys.stderr.isatty() else "error:"
    message = harmless(message, keep="\n")
    click.echo(f"penstock: {label} {message}", err=True)


if __name__ == "__main__":
    sys.exit(main())
