"""What decides in security: principals, ACLs, sign-in, quotas. Plain objects and functions.

`acl`                entries, filters, and what is refused
`acl_decision`       whether a principal may, and which rule decided
`acl_set`            all ACLs at one version
`audit`              the audit log's lines, and what is summed up
`bootstrap_users`    users that a new cluster begins with
`client_file`        files that say where a cluster is and how to sign in
`identity`           the name in the certificate of one of our own processes
`login_limits`       how long an attempt to sign in has to wait after others failed
`oauthbearer`        the OAUTHBEARER mechanism, and what a token must claim
`plain`              the PLAIN mechanism, on the users of SCRAM
`principal`          who asks, and how that is written
`principal_mapping`  rules that make a user's name of a certificate's subject
`quota_book`         what one process knows of quotas: uses, limits, shares
`quota_dealer`       the active controller's side of shared quotas
`quota_entities`     who a quota is for, its keys, and which of several counts
`quota_rates`        measured rates, token buckets, and for how long to throttle
`quota_shares`       how processes share a quota of the whole cluster
`sasl`               what mechanisms have in common
`sasl_session`       which request is allowed when on a connection that signs in
`saslprep`           the normal form of passwords
`scram`              the server's side of SCRAM, and what is stored of a password
`scram_client`       the client's side
`serial_number`      serial numbers of certificates
`session_token`      tokens of the native API
`subject`            the subject of a certificate, as Kafka writes it
"""
