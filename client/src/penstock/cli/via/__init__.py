"""Who starts and stops processes for a command: the local cluster, compose, or a command that the operator gave.

`ways`     what every way can do, and which one is meant
"""
