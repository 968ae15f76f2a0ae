"""The harnesses' pages."""
