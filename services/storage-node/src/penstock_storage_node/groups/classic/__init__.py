"""Groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat.

`group`     a group of the classic protocol
`protocol`  the classic group protocol
"""
