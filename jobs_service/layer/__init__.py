"""Jobs as keys and values: coroutines that await only their transaction."""
