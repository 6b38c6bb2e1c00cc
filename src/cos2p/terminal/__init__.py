"""The words of the terminal: a plan before a run, progress while it goes on, a summary at its end."""
