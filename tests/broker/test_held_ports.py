"""Ports of a broker that changes its role: no other process can take one meanwhile."""

from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path

import pytest

from rucola.broker.assembly.startup import RoleStart
from rucola.protocol.codes import ResponseCode
from rucola.protocol.route import vip_port
from rucola.remoting.metrics_config import MetricsExporterType
from support.broker_peer import broker_peer
from support.ports import HOST, free_ports


def _is_free(port: int, *, reuse: bool = False) -> bool:
    """Tell whether this process could take a port of `HOST`."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            other.bind((HOST, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a socket listen beside one that is bound")
async def test_all_ports_are_held_from_the_stop_of_the_parts_to_their_next_start(tmp_path: Path) -> None:
    port = free_ports(1, 1, 2, 3)[0]
    exporter = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": port + 3}
    async with broker_peer(tmp_path, listen_port=port, grpc_server_port=port + 2, **exporter) as peer:
        config, address = peer.broker.config, peer.broker.address
        ports = {
            config.listen_port,
            vip_port(config.listen_port),
            config.ha_listen_port,
            config.grpc_server_port,
            config.metrics_prom_exporter_port,
        }
        assert ports == {port - 2, port, port + 1, port + 2, port + 3}
        for _ in range(2):
            await peer.broker.stop_parts()
            assert [port for port in ports if _is_free(port)] == []
            await peer.broker.start_parts(RoleStart())
            assert [port for port in ports if _is_free(port, reuse=True)] == []  # a socket listens
        assert peer.broker.address == address
        assert (await peer.send()).code == ResponseCode.SUCCESS
        await peer.broker.stop()
        assert [port for port in ports if not _is_free(port, reuse=True)] == []
