"""journal.py: reads the journal of faults.c and replays it on a simulated disk, as the program sees it and as it is
after a power failure.

The model of a power failure is the worst case that POSIX allows: only the synced bytes of files and the synced names
of folders survive."""

import dataclasses
import os


@dataclasses.dataclass
class Record:
    call: int     # number of the call, from 1
    name: str
    id: int       # of the open file
    path: str
    other: str
    offset: int
    data: bytes


def read(path):
    """The records of a journal file, in order."""
    records = []
    with open(path, "rb") as f:
        for line in f:
            call, name, id_, place, other, offset, size = line[:-1].decode(errors="surrogateescape").split("\t")
            data = f.read(int(size) + 1)[:-1] if int(size) else b""   # a newline follows
            records.append(Record(int(call), name, int(id_), place, other, int(offset), data))
    return records


class Node:
    """A file (bytes) or a folder (names and nodes): as the program sees it, and as it was last synced."""

    def __init__(self, now):
        self.now, self.synced = now, type(now)()

    def sync(self):
        self.synced = self.now.copy()


class Disk:
    """A simulated disk to which a journal is applied. tree: its initial content, which is synced"""

    def __init__(self, tree):
        self.root, self.opened = Node({}), {}
        nodes = {path: Node({} if data is None else bytearray(data)) for path, data in sorted(tree.items())}
        for path, node in nodes.items():
            parent, last = self._place(path)
            parent[last] = node
        for node in [self.root, *nodes.values()]:
            node.sync()

    def _place(self, path):
        """The names in the folder of a path, and its last part, None if it is the root."""
        *folders, last = [p for p in path.split("/") if p not in ("", ".")] or [None]
        node = self.root
        for part in folders:
            node = node.now[part]
        return node.now, last

    def apply(self, r):
        parent, last = self._place(r.path)
        if r.name == "folder":
            self.opened[r.id] = parent[last] if last else self.root
        elif r.name in ("new", "append", "change"):
            node = self.opened[r.id] = parent.setdefault(last, Node(bytearray()))
            if r.name == "new":
                node.now.clear()
        elif r.name in ("write", "truncate"):
            data = self.opened[r.id].now
            data.extend(bytes(max(0, r.offset - len(data))))
            data[r.offset:r.offset + len(r.data) if r.data else None] = r.data
        elif r.name == "fsync":
            self.opened[r.id].sync()
        elif r.name == "mkdir":
            parent[last] = Node({})
        elif r.name in ("unlink", "rmdir"):
            del parent[last]
        elif r.name == "rename":
            moved = parent.pop(last)
            to, name = self._place(r.other)
            to[name] = moved
        elif r.name == "exchange":
            to, name = self._place(r.other)
            parent[last], to[name] = to[name], parent[last]

    def tree(self, names=lambda folder: folder.now, data=lambda f: f.now):
        """{path: bytes, or None for a folder}"""
        out = {}

        def walk(folder, prefix):
            for name, node in names(folder).items():
                if isinstance(node.now, dict):
                    out[prefix + name] = None
                    walk(node, prefix + name + "/")
                else:
                    out[prefix + name] = bytes(data(node))
        walk(self.root, "")
        return out

    def after_power_failure(self, rng):
        """(kind of loss, what survives)"""
        def zeros(f):
            same = len(os.path.commonprefix([bytes(f.now), bytes(f.synced)]))
            return f.now[:same] + bytes(len(f.now) - same)
        yield "names and bytes that were not synced are lost", self.tree(lambda f: f.synced, lambda f: f.synced)
        yield "bytes that were not synced are lost", self.tree(data=lambda f: f.synced[:len(f.now)])
        yield "bytes that were not synced are zero", self.tree(data=zeros)
        yield "some bytes that were not synced are lost", self.tree(
            data=lambda f: f.now[:rng.randint(min(len(f.now), len(f.synced)), len(f.now))])
