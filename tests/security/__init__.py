"""Attacks from outside on real processes, and what they cost everybody else."""
