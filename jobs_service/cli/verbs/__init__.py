"""The verbs of the command line: related ones share a file, which is named after the first."""
