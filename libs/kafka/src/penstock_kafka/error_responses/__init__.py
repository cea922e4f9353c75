"""Whole responses that say one error, for requests that could not be carried out.

`admin`  Whole failures of admin requests
`data`   Responses that fail a request as a whole
`group`  Whole failures of group requests
"""
