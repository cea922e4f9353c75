"""What is remembered of what was applied, for `penstock explain`. Pure.

`events`  events from the image before, the image after and the command between
`frames`  the bytes of the file that keeps events
`memory`  the newest events, by what they are about
`whose`   which cause of a command a change belongs to
"""
