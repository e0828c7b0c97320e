"""Tell systemd that the server listens, where its unit has Type=notify."""

from __future__ import annotations

import os
import socket
import sys


def say_listening() -> None:
    """Send READY=1 to the socket that $NOTIFY_SOCKET names, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if sys.platform != "win32" and address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect("\0" + address[1:] if address.startswith("@") else address)
            client.send(b"READY=1")
