"""hosts.py: four hosts on one machine: network namespaces joined by a bridge, each with a host name. Needs root."""

import os
import subprocess

SUBNET = "10.213.77"


def unavailable():
    """Why network namespaces cannot be used here, or None."""
    try:
        with Hosts(1, "/tmp"):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces need root and iproute2: {error}"


def command(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


class Hosts:
    """Hosts host1 to hostN with the addresses 10.213.77.1 to N. The link of each is a veth pair to a bridge."""

    def __init__(self, count, folder):
        self.count, self.id, self.folder = count, os.getpid() % 100000, folder
        self.bridge = f"tb{self.id}"
        self.names = [f"tost{self.id}_{i}" for i in range(1, count + 1)]
        self.addresses = [f"{SUBNET}.{i}" for i in range(1, count + 1)]

    def link(self, host):
        """The bridge's end of the link of host 1 to N."""
        return f"tv{self.id}_{host}"

    def __enter__(self):
        try:
            command("ip", "link", "add", self.bridge, "type", "bridge")
            command("ip", "link", "set", self.bridge, "up")
            for i, (name, address) in enumerate(zip(self.names, self.addresses), 1):
                inside = ["ip", "-n", name]
                command("ip", "netns", "add", name)
                command("ip", "link", "add", self.link(i), "type", "veth", "peer", "name", "eth0", "netns", name)
                command("ip", "link", "set", self.link(i), "master", self.bridge, "up")
                command(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
                command(*inside, "link", "set", "eth0", "up")
                command(*inside, "link", "set", "lo", "up")
                # bbr, the default on some machines, needs a queueing discipline of its own
                command(*inside, "route", "change", f"{SUBNET}.0/24", "dev", "eth0", "src", address, "congctl", "cubic")
                # gives up data that is not acknowledged after 6 s, not 15 minutes; keepalive tests idle connections
                command("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.tcp_retries2=4")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for words in (*(["netns", "del", name] for name in self.names),
                      *(["link", "del", self.link(i)] for i in range(1, self.count + 1)), ["link", "del", self.bridge]):
            subprocess.run(["ip", *words], capture_output=True, check=False)

    def limit(self, rate):
        """Limits what each host sends and receives to `rate`, such as 1gbit."""
        for i, name in enumerate(self.names, 1):
            shape = ["root", "tbf", "rate", rate, "burst", "1mb", "latency", "20ms"]
            command("tc", "-n", name, "qdisc", "replace", "dev", "eth0", *shape)
            command("tc", "qdisc", "replace", "dev", self.link(i), *shape)

    def cut(self, host):
        """The link goes down: nothing tells the other hosts."""
        command("ip", "link", "set", self.link(host), "down")

    def on(self, host):
        """Words before a command that run it on a host."""
        return ["ip", "netns", "exec", self.names[host - 1], "unshare", "--uts", "sh", "-c",
                f'hostname host{host}; exec "$@"', "sh"]

    def agent(self):
        """A program that takes a host's address and a shell command, as ssh does."""
        path = os.path.join(self.folder, "agent")
        cases = "".join(f'    {address}) set -- {self.names[i]} host{i + 1} "$@" ;;\n'
                        for i, address in enumerate(self.addresses))
        with open(path, "w") as f:
            f.write('#!/bin/sh\n# agent [-x] ADDRESS COMMAND\n[ "$1" != -x ] || shift\naddress=$1\nshift\n'
                    f'case $address in\n{cases}    *) echo "agent: no host $address" >&2; exit 1 ;;\nesac\n'
                    'name=$1 host=$2\nshift 2\n'
                    'exec ip netns exec "$name" unshare --uts sh -c "hostname $host; $*"\n')
        os.chmod(path, 0o755)
        return path

    def mpi_options(self, mpi):
        """mpirun's options that place one rank on each host, with TCP between them."""
        hosts = os.path.join(self.folder, f"hosts.{mpi.name}")
        with open(hosts, "w") as f:
            f.writelines(f"{a} slots=1\n" if mpi.name == "openmpi" else f"{a}:1\n" for a in self.addresses)
        if mpi.name == "openmpi":
            return ["--hostfile", hosts, "--map-by", "slot", "--mca", "plm_rsh_agent", self.agent(), "--mca", "pml",
                    "ob1", "--mca", "btl", "tcp,self", "--mca", "oob_tcp_keepalive_time", "3", "--mca",
                    "oob_tcp_keepalive_intvl", "1", "--mca", "oob_tcp_keepalive_probes", "3"]
        return ["-f", hosts, "-launcher", "ssh", "-launcher-exec", self.agent(), "-genv", "UCX_TLS", "tcp,self"]
