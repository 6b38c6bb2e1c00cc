"""The inside of a run as one page: live while it runs (`watch`), or frozen into a file (`report`).

events.jsonl → build (one JSON document) → live (a small server) or frozen (a single HTML file)

The page knows nothing of a run but the document, whose parts are described where they are made. It is compact, because
a run of 500 rounds × 64 devices has to open at once: whatever grows with the run is a table in columns, clients are
numbers of devices, times are rounded. An unknown value is null, never a stand-in. Shares (accuracy, RU, busy) are 0 to
1, sizes are bytes, times are seconds of the run (virtual in a simulation, the wall's on a fleet) unless a name says
`wall`. Every string may come from a client: names and reasons are text to show, never markup.
"""
