"""The main function of a process that is the head of a local Ray cluster; all of Ray's processes are its descendants.

It is forked by a server that ends with the driver and takes every descendant along, so that a driver that is killed
leaves neither processes nor files. The cluster listens on the loopback interface, without a dashboard, and wants a
token.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from functools import partial

from quintain.placements.ray import start_worker
from quintain.services.processes.messages import MAX_MESSAGE_BYTES, Assembler, receive, send_text


def serve(descriptor: int) -> None:
    """Starts a cluster, sends its address, and stays until the driver ends."""
    channel = socket.socket(fileno=descriptor)
    words = json.loads(receive(channel, Assembler())[0])
    os.environ.update(words["environment"])
    if words["prestarts"]:
        # As many workers as CPUs begin before an actor wants one.
        os.environ.update({"RAY_enable_worker_prestart": "1", "RAY_prestart_worker_first_driver": "0"})
    # Reads the variables above while it is imported.
    import ray
    from ray._private import node, parameter

    # Processes less to start and to wait for: nothing here is scaled, and nothing relays the output of actors.
    fixed = {"no_monitor": True, "include_log_monitor": False, "setup_worker_path": start_worker.__file__}
    parameter.RayParams = partial(parameter.RayParams, **fixed)
    if not words["has_server"]:
        # The server of a dashboard that is off refuses what it is asked, at once; Ray Train alone asks.
        node.Node.start_api_server = lambda *given, **named: None
    try:
        context = ray.init(
            address="local",
            num_cpus=words["num_cpus"],
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=words["directory"],
        )
    except Exception as error:  # of whatever Ray meets on this machine
        send_text(channel, json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        return
    # The driver is told to stop too, and needs the cluster until it has saved what is in it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send_text(channel, json.dumps({"address": context.address_info["gcs_address"]}).encode())
    while channel.recv(MAX_MESSAGE_BYTES):
        pass
