"""What every room stands on: files, errors, events, the journal, child processes."""
