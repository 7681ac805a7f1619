"""What goes from one rank to another: told to ranks that are run at once, and noted of those that are not.

Python objects travel as messages of the dry run (`ranks/mail`), as what travels through a GPU cannot be unpickled here;
the few bytes of GPU memory through which they would go are not seen. Small tensors are sent for real, and their values,
where they are known, are told beside that. Of ranks that do not run nothing comes: a broadcast leaves what is there,
what is received has unknown values, and an object that a rank waits for is an error.

Ranks that send each other tensors or objects (the stages of a pipeline) are not alike, nor are those whose shards of
the optimizer's state differ: `differing` names them.
"""

import contextlib
import copy
import pickle
import sys
from functools import partial

from _xmem.process import alive
from _xmem.ranks import collectives, mail
from _xmem.values import known_values

MOST_ELEMENTS = 4096
"""Of a tensor whose values are told: shapes, lengths, counts; nothing else decides what the other rank does."""

_peers = set()


def install(torch):
    """Take the place of torch's exchanges of objects, and stand beside those of tensors."""
    c10d = _c10d()
    objects = (all_gather_object, gather_object, broadcast_object_list, scatter_object_list)
    for function in (*objects, send_object_list, recv_object_list):
        setattr(c10d, function.__name__, function)
        setattr(torch.distributed, function.__name__, function)
    group = torch._C._distributed_c10d.ProcessGroup
    coming = []
    group.send, group.recv = _telling(group.send), _told(group.recv, coming)
    group.broadcast = _telling_all(group.broadcast)
    c10d.batch_isend_irecv = torch.distributed.batch_isend_irecv = _told_as_one(c10d.batch_isend_irecv, coming)
    collectives.install(torch)


def differing():
    """Return the ranks that may need another amount of memory than this one."""
    with contextlib.suppress(Exception):  # of an optimizer that is half built
        _peers.update(_largest_shards())
    return sorted(_peers)


def _largest_shards():
    """Return the rank with the largest part of a ZeroRedundancyOptimizer, which gives parameters away whole."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    found = set()
    for optimizer in alive.made(sys.modules["torch"].optim.Optimizer) if module else ():
        if not isinstance(optimizer, module.ZeroRedundancyOptimizer):
            continue
        parts = [
            sum(parameter.numel() for group in groups for parameter in group["params"])
            for groups in optimizer._partition_parameters()
        ]
        if parts[optimizer.rank] < max(parts):
            found.add(_c10d().get_global_rank(optimizer.process_group, parts.index(max(parts))))
    return found


def _c10d():
    return sys.modules["torch.distributed.distributed_c10d"]


class _Ranks:
    """This rank and another of a group, both as numbers of the world, and a name for what goes between them."""

    def __init__(self, group, there=None, in_group=None):
        c10d = _c10d()
        group = group if group is not None else c10d._get_default_group()
        self.here, self.there = c10d.get_rank(), there or 0
        if in_group is not None:
            self.there = c10d.get_global_rank(group, in_group)
        self.all = c10d.get_process_group_ranks(group)
        self.running = mail.running(c10d.get_world_size()) & set(self.all)
        self.channel = c10d._get_process_group_name(group)

    @property
    def is_root(self):
        return self.here == self.there

    def post(self, content, to):
        """Send to a rank, if it runs."""
        if to in self.running and to != self.here:
            mail.post(self.channel, self.here, to, pickle.dumps(content))

    def take(self):
        """Return what the other rank sent.

        Raises:
            NobodyTellsError: it does not run, or has ended.
        """
        if self.there not in self.running:
            raise mail.NobodyTellsError("rank %d waits for rank %d, which was not run" % (self.here, self.there))
        return pickle.loads(mail.take(self.channel, self.there, self.here))  # noqa: S301 - a rank of this job

    def tell(self, tensors, to):
        """Send the values of small tensors."""
        for tensor in filter(_is_small, tensors):
            values = known_values.of(tensor)
            for rank in to:
                self.post(None if values is None else values.tolist(), rank)

    def hear(self, tensors):
        """Take the values of these small tensors, which are then no more in the list."""
        torch = sys.modules["torch"]
        while tensors and self.there in self.running:
            values, tensor = self.take(), tensors.pop(0)
            collectives.put(tensor, None if values is None else torch.tensor(values, dtype=tensor.dtype, device="cpu"))


def _is_small(tensor):
    return tensor.numel() <= MOST_ELEMENTS


# -- objects: the arguments are torch.distributed's own, 2.4 to 2.15 ---------------------------------------------------


def all_gather_object(object_list, obj, group=None):
    if not _c10d()._rank_not_in_group(group):
        object_list[:] = [copy.deepcopy(obj) for _ in object_list]


def gather_object(obj, object_gather_list=None, *_args, **_kwargs):
    if object_gather_list:
        all_gather_object(object_gather_list, obj)


def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
    if _c10d()._rank_not_in_group(group):
        return
    ranks = _Ranks(group, src, group_src)
    if ranks.is_root:
        for rank in ranks.running:
            ranks.post(object_list, rank)
    elif ranks.there in ranks.running:
        object_list[:] = ranks.take()


def scatter_object_list(
    scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None
):
    if _c10d()._rank_not_in_group(group):
        return
    ranks = _Ranks(group, src, group_src)
    if ranks.is_root:
        for rank, each in zip(ranks.all, scatter_object_input_list):  # noqa: B905 - Python 3.9
            ranks.post(each, rank)
        scatter_object_output_list[0] = scatter_object_input_list[ranks.all.index(ranks.here)]
    elif ranks.there in ranks.running:
        scatter_object_output_list[0] = ranks.take()


def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None, **_kwargs):
    ranks = _Ranks(group, dst, group_dst)
    _peers.update(ranks.all)
    ranks.post(object_list, ranks.there)


def recv_object_list(object_list, src=None, group=None, device=None, group_src=None, **_kwargs):
    ranks = _Ranks(group, src, group_src)
    _peers.update(ranks.all)
    object_list[:] = ranks.take()
    return ranks.there


# -- tensors: methods of torch's ProcessGroup --------------------------------------------------------------------------


class _Received:
    """A Work whose wait() waits for what the sender tells, too."""

    def __init__(self, work, hear):
        self._work, self._hear = work, hear

    def __getattr__(self, name):
        return getattr(self._work, name)

    def wait(self, *args, **kwargs):
        self._hear()
        return self._work.wait(*args, **kwargs)


def _telling(send):
    def telling_send(group, tensors, dst, *args, **kwargs):
        ranks = _Ranks(group, in_group=dst)
        _peers.update(ranks.all)
        ranks.tell(tensors, [ranks.there])
        return send(group, tensors, dst, *args, **kwargs)

    return telling_send


def _told(recv, coming):
    def told_recv(group, tensors, src, *args, **kwargs):
        ranks = _Ranks(group, in_group=src)
        _peers.update(ranks.all)
        if ranks.there not in ranks.running:
            for tensor in tensors:
                collectives.put(tensor, None)
        hear = partial(ranks.hear, list(filter(_is_small, tensors)))
        coming.append(hear)
        return _Received(recv(group, tensors, src, *args, **kwargs), hear)

    return told_recv


def _told_as_one(batch, coming):
    """What is told in a batch is waited for once this rank has sent all of its own."""

    def batch_isend_irecv(p2p_op_list):
        coming.clear()
        works, heard = batch(p2p_op_list), coming[:]

        def hear():
            for each in heard:
                each()

        return [_Received(work, hear) for work in works] if heard else works

    return batch_isend_irecv


def _telling_all(broadcast):
    def telling_broadcast(group, tensors, *args, **kwargs):
        root = getattr(args[0], "rootRank", None) if args else None
        ranks = _Ranks(group, in_group=root) if root is not None else None
        if ranks is not None and ranks.is_root:
            ranks.tell(tensors, ranks.running)
        work = broadcast(group, tensors, *args, **kwargs)
        if ranks is not None and not ranks.is_root:
            ranks.hear(list(filter(_is_small, tensors)))
        return work

    return telling_broadcast
