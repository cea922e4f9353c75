"""Groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat.

`group`     A group of the classic protocol
`protocol`  The classic group protocol
"""
