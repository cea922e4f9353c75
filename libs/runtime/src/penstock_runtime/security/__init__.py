"""Certificates of our own processes: settings, contexts, and new files in the place of old ones.

`role_tls`   the `[tls]` table of a role, and TLS contexts of its files
`tls_files`  files that change while a process runs: new contexts for new connections
"""
