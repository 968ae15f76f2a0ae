"""What users compare on their own machine: ``gluontune bench`` and the peers of ``gluontune tta``."""
