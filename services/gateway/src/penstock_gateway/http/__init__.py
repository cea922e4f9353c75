"""The gateway's REST API: reads of the cluster's metadata, as JSON."""
