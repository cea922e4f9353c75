"""The controller's gRPC service.

`admissions`   plans and begins the admission of controllers' new directories
`changes`      what each changing call has changed, as lines of the audit log
`peer_levels`  asks the other controllers which feature level they understand
`service`      the gRPC service of a controller
`upgrades`     plans and starts upgrades: of all controllers as they are now
"""
