"""Run the server's processes: the socket, signals, workers and their supervisor."""
