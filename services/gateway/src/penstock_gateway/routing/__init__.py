"""What the gateway decides: addresses, leaders, splitting. No asyncio, no gRPC, no clock."""
