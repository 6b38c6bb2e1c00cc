"""What the terminal shows: progress while a run goes on, plans before it, summaries after. Made of events and figures
(`tracking`); nothing here changes a run."""
