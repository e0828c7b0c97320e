"""Show what the server does: logs, metrics, traces and the status page."""
