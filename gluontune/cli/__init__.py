"""The command line, a file per command: each parses options, calls a room, prints the result."""
