"""The main job, end to end: real flights in through one address, a node killed, Spark at the end.

Run it with `make demo`. `__main__` is the story; each chapter is a module.
"""
