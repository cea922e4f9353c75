"""Fetching from storage nodes by their own Kafka listeners, with nothing between.

Parts: `frames` (requests and answers as bytes), `batches` (runs of batches, by their headers alone), `connection` (a
socket: TLS, sign-in, one buffer that is used again), `nodes` (who leads and where, what was out of reach), `route`
(one partition: from which node to ask, and the question ahead).
"""
