"""Kafka's wire protocol: which APIs there are, framing, and the messages.

Produce, Fetch, Metadata and ApiVersions are read and written by hand, because they
are hot or come first on every connection; all else goes through kio, in `codec` alone.
"""
