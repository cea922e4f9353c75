"""Who starts and stops processes for a command: the local cluster, compose, or a command that the operator gave.

`choosing`      which way a command means, by its options
`compose`       containers of a compose project
`exec_command`  a command of the operator, run for each process
`local`         processes of the local cluster
`scaling`       how many processes of a role there are; more, and fewer
`ways`          what every way can do, and which one is meant
"""
