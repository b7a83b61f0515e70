"""The entry of each child process: `python -m sluiceway.supervisor.child ROLE DIRECTORY SUPERVISOR_PID LISTENER`.

`LISTENER` is the file descriptor of the listening socket, which the API process inherits. The supervisor has blocked
SIGTERM and SIGINT, since a signal may come before the child ignores them.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, assert_never

import msgspec
import structlog
import zmq

from sluiceway.config import ServeConfig
from sluiceway.errors import SluicewayError
from sluiceway.ipc.messages.to_child import Role
from sluiceway.ipc.messages.to_supervisor import Failed
from sluiceway.ipc.pipes.addresses import Addresses
from sluiceway.ipc.pipes.control import ControlClient
from sluiceway.obs.log import configure_log

CONFIG_FILE = "config.msgpack"

_PARENT_CHECK_S = 0.5


def main(role: Role, directory: Path, supervisor: int, listener: int) -> int:
    """Run one process until the supervisor stops it. Returns its exit code."""
    # The supervisor decides when to stop, also if a terminal or an init system signals every process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    _leave_with(supervisor, directory)
    config = msgspec.msgpack.decode((directory / CONFIG_FILE).read_bytes(), type=ServeConfig)
    configure_log(config.log_level, config.log_format, process=role.value)
    addresses = Addresses.in_directory(str(directory))
    context: zmq.Context[Any] = zmq.Context()
    try:
        match role:
            case Role.API:
                _api(config, context, addresses, listener)
            case Role.TOKENIZER:
                _tokenizer(config, context, addresses)
            case Role.ENGINE:
                _engine(config, context, addresses)
            case _:
                assert_never(role)
    except SluicewayError as error:
        return _fail(context, addresses, role, Failed(str(error), error.exit_code))
    except Exception:
        structlog.get_logger(role.value).exception("process failed")
        return _fail(context, addresses, role, Failed("an unexpected error; its traceback is in the log"))
    context.destroy(linger=200)
    return 0


def _fail(context: zmq.Context[Any], addresses: Addresses, role: Role, why: Failed) -> int:
    control = ControlClient(context, addresses.control, role)
    control.report(why)
    control.close(linger_ms=1_000)
    context.term()
    return 1


def _leave_with(supervisor: int, directory: Path) -> None:
    """End this process soon after the supervisor, its parent, was killed, and remove its directory."""

    def watch() -> None:
        while os.getppid() == supervisor:
            time.sleep(_PARENT_CHECK_S)
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


# Each role imports its own modules: the API process never loads torch or a tokenizer, the tokenizer never loads torch.


def _api(config: ServeConfig, context: zmq.Context[Any], addresses: Addresses, listener: int) -> None:
    from sluiceway.api.process import serve_api

    _freeze_objects()
    serve_api(config, context, addresses, socket.socket(fileno=listener))


def _tokenizer(config: ServeConfig, context: zmq.Context[Any], addresses: Addresses) -> None:
    import uvloop

    from sluiceway.tokenizer.process import run_tokenizer
    from sluiceway.tokenizer.text.load import load_tokenizer

    tokenizer = load_tokenizer(config.model)
    _freeze_objects()
    uvloop.run(run_tokenizer(context, addresses, tokenizer))


def _engine(config: ServeConfig, context: zmq.Context[Any], addresses: Addresses) -> None:
    from sluiceway.engine.process import EngineLoop
    from sluiceway.engine.setup import build_engine
    from sluiceway.store.progress import loading_bar

    with loading_bar(config.model.name) as on_load:
        engine, facts = build_engine(config, on_load)
    _freeze_objects()
    EngineLoop(context, addresses, engine, facts).run()


def _freeze_objects() -> None:
    """Exclude the objects that exist now from garbage collection: they stay, and walking them would delay tokens."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main(Role(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
