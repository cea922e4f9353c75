"""What metadata cost as a cluster grows, without processes or network: `python -m bench.scale`.

model  Clusters of a given size, as their active controller knows them
measure  What is done to one, in CPU seconds and bytes
"""
