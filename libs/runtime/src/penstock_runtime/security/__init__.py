"""Certificates of our own processes: settings, contexts, and new files in the place of old ones.

`callers`           who calls: the identity in the certificate of a gRPC call, and what it may say it is
`diagnosis`         why a TLS connection with another role is not made
`jwks`              sets of keys (JWKS) and the signatures of tokens, by PyJWT
`jwks_source`       where an issuer's keys are read: a file, or an https URL
`listener_tls`      TLS contexts of a Kafka listener's files
`methods`           which role may call which method of our internal services
`own_certificate`   the certificate that a role starts with, and what it does while the role runs
`refused`           certificates that are let in no more, by the newest metadata
`resumed_sessions`  calls by sessions that were resumed after their certificate had ended
`role_guard`        the interceptor that asks which role calls
`role_tls`          the `[tls]` table of a role, and TLS contexts of its files
`tls_files`         files that change while a process runs: new contexts for new connections
`token_validator`   whether a token counts, and for whom: by the issuer's keys, which are kept fresh
"""
