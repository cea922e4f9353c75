"""Penstock's gateway: the one address that every client needs.

Stateless: what it knows comes from the controllers' metadata stream, what it holds
are connections. `routing/` decides and knows no event loop; `kafka/`, `native/` and
`http/` are the shells that carry its decisions out.
"""
