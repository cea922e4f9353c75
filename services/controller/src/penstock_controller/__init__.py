"""Penstock's controller: the cluster's metadata in a Raft quorum."""
