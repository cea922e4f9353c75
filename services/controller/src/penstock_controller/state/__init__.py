"""What the controller decides: pure functions from an image and a request to records,
and the soft state of sessions. No asyncio, gRPC, files or clocks inside.
"""
