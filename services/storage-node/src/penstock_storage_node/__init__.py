"""Penstock's storage node: partition logs on its own disk, led or followed."""
