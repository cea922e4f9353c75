"""Kafka's wire protocol: which APIs there are, framing, and the messages.

`admin_failures`  as `failures`, for admin requests
`api_versions`    ApiVersions, the first request on every connection, by hand
`apis`            the Kafka APIs: their keys, the versions that this build answers, their routes
`codec`           every message that isn't written by hand, through kio
`failures`        responses to requests that fail as a whole: every item with the error
`fetch`           Fetch requests and responses, by hand
`frames`          headers of requests and responses
`group_failures`  as `failures`, for group requests
`groups`          which partition of `__consumer_offsets` a group belongs to
`metadata`        Metadata requests and responses, by hand
`pipeline`        in what order an idempotent producer's batches must come again
`produce`         Produce requests and responses, by hand
`sanitize`        a walk over a request before kio reads it, driven by kio's own schema classes
`wire`            reading and writing Kafka's primitive types by hand

Produce, Fetch, Metadata and ApiVersions are read and written by hand, because they
are hot or come first on every connection; all else goes through kio, in `codec` alone.

`api_versions`  ApiVersions, the first request on every connection, by hand
`apis`          The Kafka APIs
`codec`         Every message that isn't written by hand, through kio; nobody else imports kio
`fetch`         Fetch requests and responses, by hand
`frames`        Headers of requests and responses
`groups`        Which partition of `__consumer_offsets` a group belongs to; its leader is the group's
`metadata`      Metadata requests and responses, by hand
`primitives`    Reading and writing Kafka's primitive types by hand
`produce`       Produce requests and responses, by hand
`sanitize`      A walk over a request before kio reads it, driven by kio's own schema classes
"""
