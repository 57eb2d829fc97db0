"""journal.py: reads the journal of faults.c and replays it on a simulated disk, as the program sees it and as it is
after a power failure.

The model of a power failure is the worst case that POSIX allows: only the synced bytes of files and the synced names
of folders survive."""

import dataclasses


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
    records, at = [], 0
    with open(path, "rb") as f:
        text = f.read()
    while at < len(text):
        end = text.index(b"\n", at)
        call, name, id_, place, other, offset, size = text[at:end].decode(errors="surrogateescape").split("\t")
        at, n = end + 1, int(size)
        records.append(Record(int(call), name, int(id_), place, other, int(offset), text[at:at + n]))
        at += n + (n > 0)
    return records


class File:
    def __init__(self, data=b""):
        self.data, self.synced = bytearray(data), b""


class Folder:
    def __init__(self):
        self.names, self.synced = {}, {}


class Disk:
    """A simulated disk to which a journal is applied. tree: its initial content, which is synced"""

    def __init__(self, tree=None):
        self.root, self.opened = Folder(), {}
        for path, data in sorted((tree or {}).items()):
            parent, last = self._place(path)
            parent.names[last] = Folder() if data is None else File(data)
        self._sync_all(self.root)

    def _sync_all(self, node):
        if isinstance(node, File):
            node.synced = bytes(node.data)
            return
        node.synced = dict(node.names)
        for child in node.names.values():
            self._sync_all(child)

    def _place(self, path):
        parts = [p for p in path.split("/") if p not in ("", ".")]
        node = self.root
        for part in parts[:-1]:
            node = node.names[part]
        return node, parts[-1] if parts else None

    def _node(self, path):
        parent, last = self._place(path)
        return parent.names.get(last) if last else parent

    def apply(self, r):
        parent, last = self._place(r.path) if r.path else (None, None)
        if r.name == "folder":
            self.opened[r.id] = self._node(r.path)
        elif r.name in ("new", "append", "change"):
            node = parent.names.setdefault(last, File())
            if r.name == "new":
                node.data = bytearray()
            self.opened[r.id] = node
        elif r.name == "write":
            data = self.opened[r.id].data
            if len(data) < r.offset:
                data.extend(bytes(r.offset - len(data)))
            data[r.offset:r.offset + len(r.data)] = r.data
        elif r.name == "truncate":
            data = self.opened[r.id].data
            del data[r.offset:]
            data.extend(bytes(r.offset - len(data)))
        elif r.name == "fsync":
            node = self.opened[r.id]
            node.synced = bytes(node.data) if isinstance(node, File) else dict(node.names)
        elif r.name == "mkdir":
            parent.names[last] = Folder()
        elif r.name in ("unlink", "rmdir"):
            del parent.names[last]
        elif r.name in ("rename", "exchange"):
            to, name = self._place(r.other)
            parent.names[last], moved = to.names.get(name), parent.names[last]
            to.names[name] = moved
            if r.name == "rename":
                del parent.names[last]

    def tree(self, names=lambda f: f.names, data=lambda f: bytes(f.data)):
        """{path: bytes, or None for a folder}"""
        out = {}

        def walk(folder, prefix):
            for name, node in names(folder).items():
                out[prefix + name] = None if isinstance(node, Folder) else data(node)
                if isinstance(node, Folder):
                    walk(node, prefix + name + "/")
        walk(self.root, "")
        return out

    def strict(self):
        """Names and bytes that were not synced are lost."""
        return self.tree(lambda f: f.synced, lambda f: f.synced)

    def names_only(self):
        """All names have reached the disk; bytes that were not synced are lost."""
        return self.tree(data=lambda f: f.synced[:len(f.data)])

    def zeros(self):
        """All names and sizes have reached the disk; bytes that were not synced are zero."""
        def data(f):
            same = 0
            while same < min(len(f.data), len(f.synced)) and f.data[same] == f.synced[same]:
                same += 1
            return bytes(f.data[:same]) + bytes(len(f.data) - same)
        return self.tree(data=data)

    def torn(self, rng):
        """All names have reached the disk, and a random number of the bytes that were not synced."""
        def data(f):
            start = min(len(f.data), len(f.synced))
            return bytes(f.data[:rng.randint(start, len(f.data))])
        return self.tree(data=data)
