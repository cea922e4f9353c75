"""The gRPC side of the controller: thin asyncio shells around `state` and `quorum`."""
