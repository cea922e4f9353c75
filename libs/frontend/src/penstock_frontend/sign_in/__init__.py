"""Signing in: at Kafka listeners by SASL and certificates, at the native API and at HTTP.

`callers`      who comes by a door beside the listeners
`certified`    whom a client's certificate makes
`credentials`  what users prove themselves by, from the newest metadata, and who relies on it
`desk`         what all listeners of a process share for signing in
`doorkeeper`   who gets the frames of a connection until its client has signed in
`doors`        the doors of a role's listeners, from their settings
`exchanges`    one exchange of a mechanism: tokens in, tokens out, a user in the end
`http`         who asks by HTTP, and from which Host
`old_news`     what may still be done by a process that hears of no controller
`passwords`    PLAIN's PBKDF2 beside the event loop
"""
