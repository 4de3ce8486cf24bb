"""What the adapters of all engines share. Nothing here imports an engine."""
