"""Reaches for the host's and the neighbour's network by every address and kind of socket."""
import os
import socket
import struct
import subprocess
import time
from attack import *
from errno import *

# Sockets that see or forge packets.
for family in (socket.AF_INET, socket.AF_INET6):
    for proto in (1, 6, 17, 58, 89, 255):
        refused("raw socket %d/%d" % (family, proto), lambda: socket.socket(family, socket.SOCK_RAW, proto), EPERM, EPROTONOSUPPORT)
for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
    refused("packet socket", lambda: socket.socket(17, kind, socket.htons(3)), EPERM, EACCES)
refused("old packet socket", lambda: socket.socket(2, 10, socket.htons(3)), EPERM, EINVAL, EPROTONOSUPPORT, ESOCKTNOSUPPORT)

# Families that lead to a host's kernel, a hypervisor or hardware.
for family in (3, 4, 5, 6, 8, 9, 11, 12, 15, 20, 21, 23, 24, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45):
    for kind in (1, 2, 3, 5):
        refused("family %d" % family, lambda: socket.socket(family, kind, 0), EAFNOSUPPORT, EPERM, ESOCKTNOSUPPORT)

# Netlink: its own network may be changed; the others would be of the host's kernel.
for proto in range(1, 23):
    if proto != 15:
        refused("netlink %d" % proto, lambda: socket.socket(16, 3, proto), EPROTONOSUPPORT)
s = socket.socket(16, 3, 15)
allowed("ask for device events", lambda: s.bind((0, 1)))
s.settimeout(0.2)
refused("the host's device events", lambda: s.recv(4096), EAGAIN, EOPNOTSUPP, None)
s.close()


def probe(family, address, port, kind=socket.SOCK_STREAM, why=""):
    """One connect or datagram."""
    s = socket.socket(family, kind)
    s.settimeout(5)
    began = time.monotonic()

    def reach():
        s.connect((address, port, 0, 2) if family == socket.AF_INET6 and address.startswith("fe80") else (address, port))
        s.send(MARK.encode())
        return s.recv(100)

    refused("%s to %s port %d %s" % ("connect" if kind == socket.SOCK_STREAM else "datagram", address, port, why), reach)
    check("%s was answered at once %s" % (address, why), time.monotonic() - began < 4)
    s.close()


def everywhere(why):
    for port in target["ports"]:
        for address in target["addresses4"] + ["127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0", "10.200.0.0", "10.200.0.1", "10.200.0.2", "10.200.0.3", "10.200.0.6", "169.254.169.254", "192.168.0.1", "172.17.0.1"]:
            probe(socket.AF_INET, address, port, why=why)
        for address in target["addresses6"] + ["::1", "::", "::ffff:127.0.0.1", "::ffff:10.200.0.1", "fe80::1", "fd00::1", "64:ff9b::7f00:1", "2002:7f00:1::"]:
            probe(socket.AF_INET6, address, port, why=why)
    for address in target["addresses4"] + ["127.0.0.1", "10.200.0.1", "10.200.0.3"]:
        probe(socket.AF_INET, address, target["ports"][0], socket.SOCK_DGRAM, why)


everywhere("as given")

# One and all: broadcast and multicast.
for address in ("255.255.255.255", "10.200.0.3", "224.0.0.1", "224.0.0.251"):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    s.settimeout(0.2)
    allowed("send to " + address, lambda: s.sendto(MARK.encode(), (address, target["ports"][0])))
    refused("an answer from " + address, lambda: s.recv(100))
    s.close()

# With a network of its own making: other addresses, routes, links, devices, namespaces.
for line in (
    "ip addr add 10.200.0.1/32 dev lo", "ip addr add 10.200.0.6/30 dev eth0", "ip addr add fd00::2/64 dev eth0",
    "ip route add 192.168.0.0/16 via 10.200.0.1", "ip route replace default via 10.200.0.1 dev eth0", "ip -6 route add default dev eth0",
    "ip link add esc0 type bridge", "ip link add esc1 type veth peer name esc2", "ip link set eth0 master esc0",
    "ip link add link eth0 name esc3 type macvlan", "ip link add link eth0 name esc4 type ipvlan", "ip link add esc5 type vxlan id 7 dstport 4789",
    "ip tuntap add esc6 mode tap", "ip link set eth0 promisc on", "ip link set eth0 netns 1", "ip netns add esc",
):
    subprocess.run(line.split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
everywhere("with its own routes")

# Sources that are not its own, and addresses of others made its own.
for name, level, option in (("transparent", 0, 19), ("free bind", 0, 15), ("bind to device", 1, 25), ("mark", 1, 36)):
    s = socket.socket()
    s.settimeout(5)
    allowed(name, lambda: s.setsockopt(level, option, b"eth0\0" if option == 25 else struct.pack("i", 1)))
    allowed(name + ": bind", lambda: s.bind(("127.0.0.1", 0)))
    refused(name + ": connect", lambda: s.connect(("10.200.0.1", target["ports"][0])))
    s.close()

# A name in the host's namespace of sockets, and the sockets of its daemons.
for name in target["unix"]:
    s = socket.socket(socket.AF_UNIX)
    refused("unix socket " + name, lambda: s.connect("\0" + name[1:] if name[0] == "@" else name), ECONNREFUSED, ENOENT)
    s.close()
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    refused("unix datagram " + name, lambda: s.sendto(b"x", "\0" + name[1:] if name[0] == "@" else name), ECONNREFUSED, ENOENT)
    s.close()

# Nothing left open: what the kernel shows is the sandbox's own network.
check("no address of the host is shown", not any(a in read("/proc/net/fib_trie" if os.path.exists("/proc/net/fib_trie") else "/proc/net/route").decode() for a in target["addresses4"]))
names = set(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else set()
check("no link of the host is shown", not names & set(target["links"]), names)
end()
