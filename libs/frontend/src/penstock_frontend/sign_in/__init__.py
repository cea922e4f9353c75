"""Signing in at Kafka listeners: SASL, and certificates of clients.

`certified`    whom a client's certificate makes
`credentials`  what users prove themselves by, from the newest metadata, and who relies on it
`desk`         what all listeners of a process share for signing in
`doorkeeper`   who gets the frames of a connection until its client has signed in
`doors`        the doors of a role's listeners, from their settings
`exchanges`    one exchange of a mechanism: tokens in, tokens out, a user in the end
`passwords`    PLAIN's PBKDF2 beside the event loop
"""
