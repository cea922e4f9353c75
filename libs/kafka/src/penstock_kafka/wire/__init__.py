"""Kafka's wire protocol: which APIs there are, framing, and the messages.

`api_versions`  ApiVersions, the first request on every connection, by hand
`apis`          the Kafka APIs: their keys, the versions that this build answers, their routes
`codec`         every message that isn't written by hand, through kio
`fetch`         Fetch requests and responses, by hand
`frames`        headers of requests and responses
`groups`        which partition of `__consumer_offsets` or `__transaction_state` a group or an id belongs to
`metadata`      Metadata requests and responses, by hand
`primitives`    reading and writing Kafka's primitive types by hand
`produce`       Produce requests and responses, by hand
`produce_outline`  a Produce request without its records, made while it comes
`produce_parts`  a Produce request in parts, cut while it comes
`sanitize`      a walk over a request before kio reads it, driven by kio's own schema classes
`throttle`      the throttle time of finished responses
`transactions`  what each transaction takes of its coordinator, by hand

Produce, Fetch, Metadata, ApiVersions and what each transaction takes are read and written by hand, because they
are hot or come first on every connection; all else goes through kio, in `codec` alone.
"""
