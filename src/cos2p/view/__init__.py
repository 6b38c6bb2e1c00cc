"""What happens inside a run, as one page: live while it runs (`watch`), or frozen into a file (`report`).

events.jsonl → build (one JSON document, `model.View`) → live (a small server) or frozen (a single HTML file)
"""
