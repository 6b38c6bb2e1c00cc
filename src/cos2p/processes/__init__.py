"""Processes on this machine: a pool of workers, children that end with their parent, Ctrl-C as a request."""
