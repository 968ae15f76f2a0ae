"""``python -m gluontune`` is the command line."""

from gluontune.cli.main import entry

if __name__ == "__main__":
    entry()
