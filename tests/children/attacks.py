"""Targets of attacks on the engine that once worked."""

import os
import socket
import sys
import time

import sandbox_worker as sw


def hands_its_channel_over(path):
    """Gives its end of the channel to a sibling, which is not the child that the host then hears."""
    with socket.socket(socket.AF_UNIX) as connection:
        while connection.connect_ex(path):
            time.sleep(0.01)
        socket.send_fds(connection, [b"x"], [3])
    sw.context().emit("handed over")
    time.sleep(600)


def floods_what_it_is_given(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        sw.context().emit("listening")
        connection, _ = server.accept()
        with connection:
            _, fds, _, _ = socket.recv_fds(connection, 1, 1)
    frame = (
        b'{"t":"event","kind":"x"}\n' + b'["d",200]\n' + b"".join(b'"%d"\n["l",0]\n' % n for n in range(200))
    )
    sw.context().emit("flooding")
    while True:
        os.write(fds[0], frame)


def nested(places):
    sys.path += places  # a project in development mode is not on a child's path
    import sandbox_exec as sx

    with sx.SandboxExecutor() as executor:
        return executor.launch(len, ("abc",)).outcome(20).unwrap()
