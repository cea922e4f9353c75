"""Plans that people approve: what a request would move, whether it may, and how long it takes. Pure.

`admission`  with which new directory a controller is to vote, and whether it may
`cautions`   what people should know of a plan before they start it
`eta`        how long moves take
`gates`      what must hold before an operation may begin or go on
`plan`       what a request would move and whether it may: the Plan that people approve
`requests`   what a PlanRequest asks for, checked against the image
`rolling`    which processes are restarted in which order, and whether the cluster can do without each
`shares`     what each node has before a plan and after it
`situation`  an image and what was reported, as the planner wants them
`targets`    where replicas are to be, by kind; what is pinned is planned around
`upgrade`    which processes understand a level, what is in the way of a lower one, and the step to it
"""
