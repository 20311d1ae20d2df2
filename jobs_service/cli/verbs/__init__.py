"""The verbs of the command line: one file for each, named after it."""
