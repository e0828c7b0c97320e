"""Show the work of the server: logs, metrics, traces and the status page."""
