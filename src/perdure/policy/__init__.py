"""Pure decisions: each is a function of what it is given, so that it can be read, tested and asked for without acting.

Nothing here reads a clock, a file or a database, and nothing changes a row: the store and the runtime ask, then act.
"""
