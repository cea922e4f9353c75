"""gRPC's wire form over HTTP/2 on the event loop itself: no thread, and few copies.

`calls`             calls of a channel, as those of grpc.aio
`client`            a channel, as `grpc.aio.Channel`
`connection`        one connection of either side, without a transport
`exchange`          a call on its way, as the connection sees it
`frames`            HTTP/2 frames
`inbound`           messages out of the bytes of a stream
`peer_properties`   what a client's certificate says
`server`            a server, as `grpc.aio.server`, for the same handlers and interceptors
`status`            how a call ends, and until when it may take, as headers have it
`wire`              a connection's bytes over a transport of the event loop
"""
