"""Run commands and Python in copies of one process that has imported torch: an import takes long.

As a script it is that process (`preloaded.py serve SOCKET`), or the command that asks it
(`preloaded.py run SOCKET ARGUMENTS`).
"""

import contextlib
import importlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

# That import torch and end by themselves; "-c" is Python's.
COMMANDS = "tune|train|export|study|evaluate"
_REQUEST = 1 << 20  # bytes at most


@contextlib.contextmanager
def preloaded(folder):
    """Give a folder to put first in PATH, whose `mirror-rt` and `python` start without the imports.

    That `python` takes `-c` alone.
    """
    path, scripts = folder / "socket", folder / "bin"
    scripts.mkdir()
    start = shlex.join(["exec", sys.executable, "-S", "-E", __file__, "run", str(path)])
    ask = f'{start} "$@"'
    own = f'exec {shlex.quote(str(Path(sys.executable).with_name("mirror-rt")))} "$@"'
    for name, text in {
        "mirror-rt": f"case $1 in {COMMANDS}) {ask} ;; esac\n{own}",
        "python": ask,
    }.items():
        (scripts / name).write_text(f"#!/bin/sh\n{text}\n")
        (scripts / name).chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, "serve", path], stdout=subprocess.PIPE)
    with server:
        server.stdout.readline()  # it is ready
        yield scripts
        server.terminate()


def serve(path):
    """Import what takes long; then answer each request in a process of its own."""
    for name in ("transformers.models.bert.modeling_bert", "mirror_export.export",
                 "mirror_train.training.tune"):  # fmt: skip
        importlib.import_module(name)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        os.write(1, b"ready\n")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
        while True:
            asked, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(asked)
            asked.close()


def answer(asked):
    """Run a command with the files, the folder and the environment of who asks; send its status."""
    request, descriptors, _, _ = socket.recv_fds(asked, _REQUEST, 3)
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        asked.send(bytes([os.waitstatus_to_exitcode(status) % 256]))
        os._exit(0)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    arguments, folder, environment = json.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if arguments[0] == "-c":
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(arguments[1], vars(main))
        sys.exit()
    sys.argv = ["mirror-rt", *arguments]
    from mirror_rt.cli import main

    sys.exit(main())


def run(path, arguments):
    """Ask for a command to be run in this folder and environment; end as it does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = json.dumps([arguments, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(server, [request], [0, 1, 2])
        code = server.recv(1)
    sys.exit(code[0] if code else 1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        run(sys.argv[2], sys.argv[3:])
