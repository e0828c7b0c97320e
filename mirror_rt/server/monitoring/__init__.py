"""Show what the server does: logs, metrics, traces, the status page."""
