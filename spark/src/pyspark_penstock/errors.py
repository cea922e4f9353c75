"""Errors of the source: each says in one line what is wrong and the mend.

Spark wraps whatever a Python source raises (planner: PYTHON_DATA_SOURCE_ERROR,
executor: PythonException) and shows the last line of it, so the message carries
everything a reader needs. Every class takes one string, so it survives pickling.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of every error that this package raises itself."""


class OptionError(PenstockError, ValueError):
    """An option or a schema that this source can't honour."""


class NotBuiltYetError(OptionError):
    """An option of the Kafka connector, or of Penstock's plan, that this build lacks."""


class MissingPartError(PenstockError):
    """A package that this one needs is not there, or too old."""


class CorruptRecordsError(PenstockError):
    """Bytes that are no valid run of RecordBatch v2: nothing after them can be trusted."""


class DataLossError(PenstockError):
    """Records that the query was to read are gone (retention, truncation, topic made anew)."""


class GatewayError(PenstockError):
    """No gateway gave an answer within the retries allowed, or it refused the request."""


class RowError(PenstockError, ValueError):
    """A row that can't be written as it is."""
