"""Groups of the classic protocol, whose members make their assignments themselves.

`group`     A group as data: its members, generation and state, and the rules that need nothing else.
`protocol`  What happens to it: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what follows from silence.
"""
