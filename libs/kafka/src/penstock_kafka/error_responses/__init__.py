"""Whole responses that say one error, for requests that could not be carried out.

`admin`        whole failures of admin requests
`data`         responses that fail a request as a whole
`group`        whole failures of group requests
`transaction`  whole failures of transaction requests, and codes by version
"""
