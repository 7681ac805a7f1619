"""What goes from one rank to another: told to ranks that are run at once, and noted of those that
are not.

Python objects travel as messages of the dry run (`ranks/mail`), as what travels through a GPU
cannot be unpickled here; the few bytes of GPU memory through which they would go are not seen.
Small tensors are sent for real, and their values, where they are known, are told beside that. Of
ranks that do not run nothing comes: a broadcast leaves what is there, what is received has unknown
values, and an object that a rank waits for is an error.

Ranks that send each other tensors or objects (the stages of a pipeline) are not alike, nor are
those whose shards of the optimizer's state differ: `differing` names them.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from _xmem.process import alive
from _xmem.ranks import mail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from _xmem.annotations import Device, Function, HasValues, ProcessGroup, Tensor
    from _xmem.ranks.collectives import Collectives

MOST_ELEMENTS = 4096
"""Of a tensor whose values are told: shapes, lengths, counts; nothing else decides what the other
rank does."""


class Peers:
    """What goes between one rank and others. `mailbox` takes messages, `collectives` takes and
    `values` has those that are known.
    """

    def __init__(
        self, torch: ModuleType, mailbox: mail.Mail, collectives: Collectives, values: HasValues
    ) -> None:
        self._torch = torch
        self.mailbox = mailbox
        self._collectives = collectives
        self.values = values
        self._unlike: set[int] = set()
        # what hears the values of tensors that are on their way
        self._coming: list[Callable[[], None]] = []

    def differing(self) -> list[int]:
        """Return the ranks that may need another amount of memory than this one."""
        with contextlib.suppress(Exception):  # of an optimizer that is half built
            self._unlike.update(self._largest_shards())
        return sorted(self._unlike)

    def _largest_shards(self) -> set[int]:
        """Return the rank with the largest part of a ZeroRedundancyOptimizer, which gives
        parameters away whole.
        """
        module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
        largest: set[int] = set()
        if module is None:
            return largest
        for optimizer in alive.of_class(self._torch.optim.Optimizer):
            if not isinstance(optimizer, module.ZeroRedundancyOptimizer):
                continue
            parts = [
                sum(parameter.numel() for group in groups for parameter in group["params"])
                for groups in optimizer._partition_parameters()
            ]
            if parts[optimizer.rank] < max(parts):
                largest.add(
                    _c10d().get_global_rank(optimizer.process_group, parts.index(max(parts)))
                )
        return largest

    def objects(self, function: Function, _owner: object) -> Function:
        """Return what takes the place of one of torch's exchanges of objects."""
        return getattr(self, function.__name__)

    def put(self, tensor: Tensor, values: Any) -> None:
        """Let these values, a list or None, be those of a tensor."""
        torch = self._torch
        host_values = (
            None if values is None else torch.tensor(values, dtype=tensor.dtype, device="cpu")
        )
        self._collectives.put(tensor, host_values)

    # -- objects: the arguments are torch.distributed's own, 2.4 to 2.15 ---------------------------

    def all_gather_object(
        self, object_list: list[Any], obj: Any, group: ProcessGroup | None = None
    ) -> None:
        if not _c10d()._rank_not_in_group(group):
            object_list[:] = [copy.deepcopy(obj) for _ in object_list]

    def gather_object(
        self, obj: Any, object_gather_list: list[Any] | None = None, *_args: Any, **_kwargs: Any
    ) -> None:
        if object_gather_list:
            self.all_gather_object(object_gather_list, obj)

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: ProcessGroup | None = None,
        device: Device = None,
        group_src: int | None = None,
    ) -> None:
        if _c10d()._rank_not_in_group(group):
            return
        ranks = _Ranks(self, group, src, group_src)
        if ranks.is_root:
            for rank in ranks.running:
                ranks.post(object_list, rank)
        elif ranks.peer in ranks.running:
            object_list[:] = ranks.take()

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: Any = None,
        src: int | None = None,
        group: ProcessGroup | None = None,
        group_src: int | None = None,
    ) -> None:
        if _c10d()._rank_not_in_group(group):
            return
        ranks = _Ranks(self, group, src, group_src)
        if ranks.is_root:
            for rank, part in zip(ranks.all, scatter_object_input_list):  # noqa: B905 - Python 3.9
                ranks.post(part, rank)
            scatter_object_output_list[0] = scatter_object_input_list[ranks.all.index(ranks.rank)]
        elif ranks.peer in ranks.running:
            scatter_object_output_list[0] = ranks.take()

    def send_object_list(
        self,
        object_list: list[Any],
        dst: int | None = None,
        group: ProcessGroup | None = None,
        device: Device = None,
        group_dst: int | None = None,
        **_kwargs: Any,
    ) -> None:
        ranks = _Ranks(self, group, dst, group_dst)
        self._unlike.update(ranks.all)
        ranks.post(object_list, ranks.peer)

    def recv_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: ProcessGroup | None = None,
        device: Device = None,
        group_src: int | None = None,
        **_kwargs: Any,
    ) -> int:
        ranks = _Ranks(self, group, src, group_src)
        self._unlike.update(ranks.all)
        object_list[:] = ranks.take()
        return ranks.peer

    # -- tensors: methods of torch's ProcessGroup --------------------------------------------------

    def telling(self, send: Function, _owner: object) -> Function:
        """Around ProcessGroup.send: small values are told beside it."""

        def telling_send(
            group: ProcessGroup, tensors: list[Tensor], dst: int, *args: Any, **kwargs: Any
        ) -> Any:
            ranks = _Ranks(self, group, in_group=dst)
            self._unlike.update(ranks.all)
            ranks.tell(tensors, [ranks.peer])
            return send(group, tensors, dst, *args, **kwargs)

        return telling_send

    def told(self, recv: Function, _owner: object) -> Function:
        """Around ProcessGroup.recv: of a rank that does not run nothing is known."""

        def told_recv(
            group: ProcessGroup, tensors: list[Tensor], src: int, *args: Any, **kwargs: Any
        ) -> _Received:
            ranks = _Ranks(self, group, in_group=src)
            self._unlike.update(ranks.all)
            if ranks.peer not in ranks.running:
                for tensor in tensors:
                    self.put(tensor, None)
            hear = partial(ranks.hear, list(filter(_is_small, tensors)))
            self._coming.append(hear)
            return _Received(recv(group, tensors, src, *args, **kwargs), hear)

        return told_recv

    def told_as_one(self, batch: Function, _owner: object) -> Function:
        """Around batch_isend_irecv: what is told in a batch is waited for once this rank has sent
        all of its own.
        """

        def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
            self._coming.clear()
            works, heard = batch(p2p_op_list), self._coming[:]

            def hear() -> None:
                for take in heard:
                    take()

            return [_Received(work, hear) for work in works] if heard else works

        return batch_isend_irecv

    def telling_all(self, broadcast: Function, _owner: object) -> Function:
        """Around ProcessGroup.broadcast: its root tells the others."""

        def telling_broadcast(
            group: ProcessGroup, tensors: list[Tensor], *args: Any, **kwargs: Any
        ) -> Any:
            root = getattr(args[0], "rootRank", None) if args else None
            ranks = _Ranks(self, group, in_group=root) if root is not None else None
            if ranks is not None and ranks.is_root:
                ranks.tell(tensors, ranks.running)
            work = broadcast(group, tensors, *args, **kwargs)
            if ranks is not None and not ranks.is_root:
                ranks.hear(list(filter(_is_small, tensors)))
            return work

        return telling_broadcast


def _c10d() -> ModuleType:
    return sys.modules["torch.distributed.distributed_c10d"]


class _Ranks:
    """This rank and another of a group, both as numbers of the world, and a name for what goes
    between them.
    """

    rank: int

    def __init__(
        self,
        peers: Peers,
        group: ProcessGroup | None,
        peer: int | None = None,
        in_group: int | None = None,
    ) -> None:
        self._peers = peers
        c10d = _c10d()
        group = group if group is not None else c10d._get_default_group()
        self.rank: int = c10d.get_rank()
        self.peer = peer or 0
        if in_group is not None:
            self.peer = c10d.get_global_rank(group, in_group)
        self.all: list[int] = c10d.get_process_group_ranks(group)
        self.running = mail.running(c10d.get_world_size()) & set(self.all)
        self.channel: str = c10d._get_process_group_name(group)

    @property
    def is_root(self) -> bool:
        return self.rank == self.peer

    def post(self, content: object, to: int) -> None:
        """Send to a rank, if it runs."""
        if to in self.running and to != self.rank:
            self._peers.mailbox.post(self.channel, self.rank, to, pickle.dumps(content))

    def take(self) -> Any:
        """Return what the other rank sent.

        Raises:
            NobodyTellsError: it does not run, or has ended.
        """
        if self.peer not in self.running:
            raise mail.NobodyTellsError(
                "rank %d waits for rank %d, which was not run" % (self.rank, self.peer)
            )
        return pickle.loads(self._peers.mailbox.take(self.channel, self.peer, self.rank))  # noqa: S301 - of this job

    def tell(self, tensors: Iterable[Tensor], to: Iterable[int]) -> None:
        """Send the values of small tensors."""
        for tensor in filter(_is_small, tensors):
            values = self._peers.values.of(tensor)
            for rank in to:
                self.post(None if values is None else values.tolist(), rank)

    def hear(self, tensors: list[Tensor]) -> None:
        """Take the values of these small tensors, which are then no more in the list."""
        while tensors and self.peer in self.running:
            values = self.take()
            self._peers.put(tensors.pop(0), values)


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() <= MOST_ELEMENTS


class _Received:
    """A Work whose wait() waits for what the sender tells, too."""

    def __init__(self, work: Any, hear: Callable[[], None]) -> None:
        self._work, self._hear = work, hear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self._hear()
        return self._work.wait(*args, **kwargs)
