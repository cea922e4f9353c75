"""The one room of the core that touches the process it runs in: its environment, files, clock and threads.

It is here since clients, Spark and services share nothing else (decision 0025); the rest of the core doesn't import it.

`credentials`       reads files that say who somebody is: client files, tokens
`grpc_environment`  what gRPC is told by the environment
`native_account`    how a client of the native API says who it is
"""
