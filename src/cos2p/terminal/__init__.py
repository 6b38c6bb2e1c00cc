"""What the terminal shows: a plan before a run, progress while it goes on, a summary at its end."""
