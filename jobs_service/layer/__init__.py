"""Jobs as keys and values: coroutines that await nothing but their transaction."""
