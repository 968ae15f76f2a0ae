"""``python -m gluontune`` is the command line."""

if __name__ == "__main__":
    from gluontune.core.interpreter import leave_current_folder

    leave_current_folder()  # before anything else is imported

    from gluontune.cli.main import entry

    entry()
