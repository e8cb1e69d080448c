"""What runs inside a job that `dlemu watch` has started: it writes down when batches were taken.

`watch.launch` copies this file as `sitecustomize.py` into a folder that stands first on PYTHONPATH,
so that each Python process of the job reads it at its start. It must run in the job's interpreter,
which may have neither dlemu nor this version of Python: only the standard library of Python 3.8 and
newer is used. It imports no framework. It waits until the job imports one, and wraps a few of its
functions. Whatever fails here is written down and never reaches the job.

Each process appends lines of words to a file of its own. What a loop does in each step is kept for
a quarter of a second and then written at once: a call of the system in each step would cost more
than all else here. A job that is killed loses no more than that. Times are nanoseconds of the
monotonic clock, which all processes of a host share. The lines (`watch.events` reads them):

    P JSON                                     a process of the job, the first line of its file
    S time                                     its interpreter has started
    L id JSON                                  a loader: what it is made of
    E id iteration time                        an iteration begins
    I id iteration time                        its workers have been started
    B id iteration asked taken samples grad    a batch
    G id iteration number wait body            the same on the GPU, nanoseconds; wait -1: as body,
                                               it is in it, and was short for the host
    X id iteration time                        the loader had no more batches
    D id iteration time                        its iterator is gone
    F begun ended cpu samples                  a worker made a batch
    O time                                     an optimizer's step has ended
    C begun ended bytes path                   a checkpoint was saved
    N text                                     what failed here
    Z time                                     the process ends
"""

from __future__ import annotations

import json
import os
import sys
import time
from _thread import get_ident as _thread

if False:  # of typing only, which is not imported in the job
    from collections.abc import Callable
    from typing import Any

_now = time.perf_counter_ns
_KEPT = 250_000_000
"""Nanoseconds for which a step's line is kept, at most, while the loop takes batches."""
_SHORT = 200_000
"""Nanoseconds that the host waits for a batch below which the GPU is not asked for its own wait."""
_SOME = 8
"""Of short waits, the GPU tells one in so many."""
_MOST_KEPT = 8192
"""Words of lines that are kept, at most."""
MOST_FILES = 256
"""Files of a dataset that are named: their sizes are a sample."""
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


class _Journal:
    """The file of this process; opened with the first line, and anew in a forked child."""

    def __init__(self, folder: str) -> None:
        self.folder, self.pid, self.file = folder, 0, -1
        # Words of lines, the first of each with a line's end before it: they are made to text when
        # they are written. Flat, as strings and integers are nothing to Python's garbage collector.
        self.kept: list[Any] = []
        self.keep = self.kept.extend
        self.written = 0  # when

    def write(self, line: str = "") -> None:
        """Append what was kept and a line.

        A full disk or a folder that is gone ends the writing, not the job.
        """
        try:
            if self.pid != os.getpid():
                self.pid = os.getpid()
                name = f"job.{self.pid}.{_now()}"
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self.file = os.open(os.path.join(self.folder, name), flags, 0o644)
                os.write(self.file, ("P " + json.dumps(_process()) + "\n").encode())
            words = self.kept[:]
            del self.kept[: len(words)]
            words += ["\n" + line] if line else []
            if self.file >= 0 and words:
                text = " ".join(map(str, words))[1:] + "\n"
                os.write(self.file, text.encode("utf-8", "backslashreplace"))
        except Exception:
            self.file = -1
        self.written = _now()

    def failed(self, what: str, error: Exception) -> None:
        """Write down what failed."""
        text = f"{what}: {type(error).__name__}: {error}"
        self.write("N " + " ".join(text.split())[:300])


def _first(names: tuple[str, ...]) -> int | None:
    return next(
        (int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None
    )


def _process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "time": _now(),
        "argv": [str(word)[:200] for word in getattr(sys, "orig_argv", [])[:20]],
        "folder": os.getcwd(),
        "rank": _first(_RANKS),
        "local_rank": _first(_LOCAL_RANKS),
        "num_ranks": _first(_SIZES),
        "python": ".".join(map(str, sys.version_info[:3])),
    }


class _Loop:
    """One iteration over a loader, kept on its iterator: it ends with it."""

    __slots__ = ("batch", "id", "iteration", "nests", "number", "pid", "waiting", "watch")

    def __init__(self, watch: _Watch, loader_id: int, iteration: int) -> None:
        self.batch = f"\nB {loader_id} {iteration}"
        self.nests = True  # another watched loader may be asked within this one
        self.watch, self.id, self.iteration, self.number = watch, loader_id, iteration, 0
        self.pid = os.getpid()
        # (number, asked, taken or None, their pool): marks on the GPU's stream, not passed yet
        self.waiting: list[Any] = []

    def __del__(self) -> None:
        try:
            if self.pid != os.getpid():
                return  # a fork's copy
            self.watch.journal.write(f"D {self.id} {self.iteration} {_now()}")
            if self.waiting:
                rest = _Rest(self.watch, self.id, self.iteration)
                rest.waiting, self.waiting = self.waiting, []
                self.watch.unsettled.append(rest)
        except Exception:
            pass

    def settle(self) -> None:
        """Keep the times of batches whose successor the GPU has seen; never wait for it."""
        waiting, last = self.waiting, len(self.waiting) - 1
        while last > 0 and not waiting[last][1].query():
            last -= 1
        done, line = 0, f"\nG {self.id} {self.iteration}"
        # A stream passes its marks in their order.
        while done < last and (
            waiting[done + 1][3] is waiting[last][3] or waiting[done + 1][1].query()
        ):
            number, asked, taken, pool = waiting[done]
            following, wait, body, begun = waiting[done + 1], -1e-6, -1e-6, asked
            if taken is not None:
                wait, begun = asked.elapsed_time(taken), taken
            if following[0] == number + 1:
                body = begun.elapsed_time(following[1])
            self.watch.journal.keep((line, number, int(wait * 1e6), int(body * 1e6)))
            pool += [asked] if taken is None else [asked, taken]
            done += 1
        del waiting[:done]


class _Gpu:
    """Marks on the stream of the GPU that a thread computes on, at the least cost.

    `Event.record` of torch finds the current stream by a dozen functions in Python, which takes
    longer than all else here. What they call in the end is called at once where it is there.
    """

    def __init__(self, journal: _Journal) -> None:
        self.journal = journal
        self.streams: dict[Any, tuple[Any, list[Any]]] = {}  # with the events to use again
        self.device: Callable[[], Any] = lambda: None
        self.current: Callable[[Any], Any] | None = None
        self.capturing: Callable[[], bool] | None = None
        self.record: Callable[[Any, Any], Any] | None = None

    def mark(self) -> tuple[Any, list[Any]] | None:
        """Queue a mark; return it with the pool that it goes back to, None without a GPU."""
        try:
            if self.current is None and not self._find():
                return None
            if self.capturing():  # type: ignore[misc]
                return None
            key = self.current(self.device())  # type: ignore[misc]
            found = self.streams.get(key)
            if found is None:
                found = self.streams[key] = (_stream_of(key), [])
            stream, pool = found
            event = pool.pop() if pool else _new_event()
            self.record(event, stream)  # type: ignore[misc]
            return event, pool
        except Exception as error:
            self.journal.failed("a mark", error)
            return None

    def _find(self) -> bool:
        """Find how this torch tells the stream of a thread, once the job uses a GPU."""
        torch = sys.modules.get("torch")
        # Asked in each step of a job without a GPU: the name spares it a call.
        if torch is None or not getattr(torch.cuda, "_initialized", True):
            return False
        if not torch.cuda.is_initialized():
            return False
        self.capturing = torch.cuda.is_current_stream_capturing
        try:
            own = torch._C
            self.capturing = own._cuda_isCurrentStreamCapturing
            self.device, current = own._cuda_getDevice, own._cuda_getCurrentStream
            _stream_of(current(self.device()))
            self.record = own._CudaEventBase.record
            self.current = current
        except Exception:
            self.record = torch.cuda.Event.record
            self.device, self.current = lambda: None, torch.cuda.current_stream
        return True

    def forked(self) -> None:
        """Use no GPU in a forked child: CUDA does not work there."""
        self.current = None


def _stream_of(key: Any) -> Any:
    """Return the stream that `_Gpu.current` names."""
    if isinstance(key, tuple):
        number, device, kind = key
        return sys.modules["torch"].cuda.Stream(
            stream_id=number, device_index=device, device_type=kind
        )
    return key


def _new_event() -> Any:
    """Return an event that is never freed; few are made, as they are used again.

    Forked workers have the iterations of before, as garbage. CUDA ends a process that was forked
    and frees an event.
    """
    import ctypes

    event = sys.modules["torch"].cuda.Event(enable_timing=True)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))
    return event


class _Rest(_Loop):
    """What the GPU had not passed when an iteration ended."""

    def __del__(self) -> None:
        pass


class _Watch:
    """Which loaders there are, and the iterations over them."""

    def __init__(self, journal: _Journal) -> None:
        self.journal = journal
        self.gpu = _Gpu(journal)
        # Threads that are in a watched iterator: a loader inside another one is part of it.
        self.inside: set[int] = set()
        self.grad: Callable[[], bool] = lambda: True
        """Whether torch would keep what a gradient needs."""
        self.num_loaders = 0
        self.unsettled: list[_Loop] = []

    def begin(self, loader: Any, describe: Callable[[Any], dict[str, Any]]) -> _Loop:
        """Return the new iteration over a loader; its first one is described."""
        self.settle_rest()
        torch = sys.modules.get("torch")
        if torch is not None:
            self.grad = torch.is_grad_enabled
        state = loader.__dict__.get("_dlemu_watch")
        if state is None or state[1] != os.getpid():
            self.num_loaders += 1
            state = [self.num_loaders, os.getpid(), 0]
            loader.__dict__["_dlemu_watch"] = state
            self.journal.write(f"L {state[0]} {json.dumps(_described(describe, loader))}")
        loop = _Loop(self, state[0], state[2])
        state[2] += 1
        self.journal.write(f"E {state[0]} {loop.iteration} {_now()}")
        return loop

    def settle_rest(self) -> None:
        """Write what is known by now of iterations that have ended."""
        for rest in self.unsettled:
            rest.settle()
            if len(rest.waiting) <= 1:  # of the last batch nothing more is known
                for _, asked, taken, pool in rest.waiting:
                    pool += [asked] if taken is None else [asked, taken]
                rest.waiting.clear()
        self.unsettled = [rest for rest in self.unsettled if rest.waiting]

    def take(self, loop: _Loop | None, take: Callable[[Any], Any], batches: Any) -> Any:
        """Take a batch by `take(batches)`, and keep when.

        A core that has just slept finds little of this in its caches: what counts is how much code
        and memory it touches, and so it calls as little as it can.
        """
        inside = self.inside
        if loop is None or (inside and _thread() in inside):
            return take(batches)
        if loop.nests:
            inside.add(_thread())
        gpu = self.gpu
        asked = _now()
        mark = gpu.mark()
        try:
            batch = take(batches)
        except StopIteration:
            if mark is not None:
                loop.waiting.append((loop.number, mark[0], None, mark[1]))
            self.journal.write(f"X {loop.id} {loop.iteration} {asked}")
            raise
        finally:
            if loop.nests:
                inside.discard(_thread())
        try:
            number, journal = loop.number, self.journal
            loop.number = number + 1
            if mark is not None:
                after = None
                if _now() - asked > _SHORT or number % _SOME == 0:
                    after = gpu.mark()
                loop.waiting.append((number, mark[0], after and after[0], mark[1]))
            first = batch[0] if type(batch) is list and batch else batch
            shape = getattr(first, "shape", None)
            samples = shape[0] if shape else _samples_of(batch)
            grad = self.grad()
            taken = _now()  # the loop has its batch when this is done
            journal.keep((loop.batch, asked, taken, samples, 1 if grad else 0))
            if taken - journal.written > _KEPT or len(journal.kept) > _MOST_KEPT:
                loop.settle()
                journal.write()
        except Exception as error:
            self.journal.failed("a batch", error)
        return batch

    def end(self) -> None:
        """Write the end of this process."""
        try:
            self.settle_rest()
        except Exception as error:
            self.journal.failed("the last batches", error)
        self.journal.write(f"Z {_now()}")

    def forked(self) -> None:
        """Leave to the parent what is its own: the lines that it keeps, and its GPU."""
        self.journal.kept.clear()
        self.unsettled.clear()
        self.inside.clear()
        self.gpu.forked()

    def ended(self, *_: Any) -> None:
        """Keep when a step of an optimizer has ended."""
        journal = self.journal
        journal.keep(("\nO", _now()))
        if len(journal.kept) > _MOST_KEPT:  # no batch is taken meanwhile, and nothing written
            journal.write()


def _samples_of(batch: Any, depth: int = 0) -> int:
    """Return a batch's samples, by the first array in it: 0 where they are not known."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    is_list = isinstance(batch, (list, tuple))
    if depth < 3:
        items: Any = ()
        if is_list:
            items = batch
        elif isinstance(batch, dict) or hasattr(batch, "keys"):
            items = [batch[key] for key in batch]
        for each in items[:8]:
            samples = _samples_of(each, depth + 1)
            if samples:
                return samples
    return len(batch) if is_list and depth == 0 else 0


def _described(describe: Callable[[Any], dict[str, Any]], loader: Any) -> dict[str, Any]:
    try:
        return describe(loader)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def _place() -> str:
    """Return where the job asked for the iteration: the first line that is in no library."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "site-packages" not in name and "dist-packages" not in name and name != __file__:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _describe_torch(loader: Any) -> dict[str, Any]:
    dataset, context = loader.dataset, loader.multiprocessing_context
    try:
        length = len(dataset)
    except Exception:
        length = None
    sampler = _sampler_of(loader)
    method = context.get_start_method() if context is not None else None
    if method is None and loader.num_workers:
        import multiprocessing

        method = multiprocessing.get_start_method(allow_none=True) or "fork"
    return {
        "kind": "torch",
        "dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "samples": length,
        "length": _num_batches(loader),
        "iterable": type(loader).__name__ if length is None else "",
        "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        "num_workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "start_method": method,
        "drop_last": bool(loader.drop_last),
        "sampler": type(sampler).__name__,
        "place": _place(),
        "torch": str(sys.modules["torch"].__version__),
        **_files_of(dataset),
    }


def _num_batches(loader: Any) -> int | None:
    """Return how many batches a pass has, None where that is not known before."""
    try:
        return len(loader.batch_sampler)
    except Exception:
        return None


def _sampler_of(loader: Any) -> Any:
    """Return what draws a loader's samples, also inside samplers of batches, as accelerate's."""
    batches, sampler = getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)
    for _ in range(8):
        if batches is None:
            break
        sampler = getattr(batches, "sampler", sampler)
        batches = getattr(batches, "batch_sampler", None)
    return sampler


_LISTS = (
    "samples",
    "urls",
    "imgs",
    "image_paths",
    "paths",
    "files",
    "filenames",
    "file_list",
    "images",
)
_ROOTS = ("root", "root_dir", "data_dir", "folder", "path", "img_dir")


def _files_of(dataset: Any) -> dict[str, Any]:
    """Return files that a dataset names, evenly drawn, how many it names, and its folder."""
    for _ in range(8):  # Subset and other wrappers; timm's has a reader
        inner = getattr(dataset, "dataset", getattr(dataset, "reader", None))
        if inner is None:
            break
        dataset = inner
    named: dict[str, Any] = {}
    parts = [dataset, *getattr(dataset, "pipeline", ())[:8]]  # WebDataset's has its shards first
    for name, part in _lists_of(parts):
        found = getattr(part, name, None)
        if isinstance(found, (list, tuple)) and len(found):
            first = found[0][0] if isinstance(found[0], (list, tuple)) and found[0] else found[0]
            if isinstance(first, (str, os.PathLike)) and os.path.exists(first):
                step = max(1, len(found) // MOST_FILES)
                some = found[::step][:MOST_FILES]
                paths = [each[0] if isinstance(each, (list, tuple)) else each for each in some]
                named = {"files": [os.path.abspath(os.fspath(p)) for p in paths]}
                named["num_files"] = len(found)
                break
    named = named or _files_of_table(dataset)
    for name in _ROOTS:
        root = getattr(dataset, name, None)
        if isinstance(root, (str, os.PathLike)) and os.path.isdir(root):
            named["root"] = os.path.abspath(os.fspath(root))
            break
    return named


def _lists_of(parts: list[Any]) -> Any:
    """Give where lists of files may be: by the usual names first, then in any other attribute."""
    for name in _LISTS:
        for part in parts:
            yield name, part
    for part in parts:
        for name in list(getattr(part, "__dict__", ()))[:64]:
            yield name, part


def _files_of_table(dataset: Any) -> dict[str, Any]:
    """Return what the paths in a table of Hugging Face's `datasets` name, as of an ImageFolder."""
    table: Any = getattr(dataset, "data", None)
    for name in list(getattr(dataset, "column_names", None) or ())[:64]:
        column = table.column(name)
        inner = (column.type.field(number) for number in range(column.type.num_fields))
        if "path" in [field.name for field in inner]:
            rows = range(0, len(column), max(1, len(column) // MOST_FILES))
            paths = [column[row].as_py()["path"] for row in rows][:MOST_FILES]
            if paths and all(path and os.path.isabs(path) for path in paths):
                return {"files": paths, "num_files": len(dataset)}
    return {}


# --- what is wrapped ------------------------------------------------------------------------------


def _wrap_torch_loader(module: Any, watch: _Watch) -> None:
    loader, iterator = module.DataLoader, module._BaseDataLoaderIter
    begin, take = loader.__iter__, iterator.__next__

    def __iter__(self: Any) -> Any:
        if _in_worker() or _thread() in watch.inside:
            return begin(self)
        loop = None
        try:
            loop = watch.begin(self, _describe_torch)
        except Exception as error:
            watch.journal.failed("a loader", error)
        found = begin(self)
        try:
            found._dlemu_loop = loop
            if loop is not None:
                loop.nests = self.num_workers == 0
                watch.journal.write(f"I {loop.id} {loop.iteration} {_now()}")
        except Exception as error:
            watch.journal.failed("an iterator", error)
        return found

    def __next__(self: Any) -> Any:
        return watch.take(getattr(self, "_dlemu_loop", None), take, self)

    loader.__iter__, iterator.__next__ = _like(__iter__, begin), _like(__next__, take)


def _in_worker() -> bool:
    module = sys.modules.get("torch.utils.data._utils.worker")
    return module is not None and getattr(module, "_worker_info", None) is not None


def _wrap_fetchers(module: Any, watch: _Watch) -> None:
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher = getattr(module, name)
        fetcher.fetch = _timed(fetcher.fetch, watch)


def _timed(fetch: Any, watch: _Watch) -> Any:
    """Return `fetch`, which makes a batch, with a line for each batch."""

    def timed(self: Any, *words: Any) -> Any:
        begun, cpu = _now(), time.thread_time_ns()
        batch = fetch(self, *words)
        try:
            used = time.thread_time_ns() - cpu
            wanted = words[0] if words else ()
            samples = len(wanted) if hasattr(wanted, "__len__") else 1
            watch.journal.write(f"F {begun} {_now()} {used} {samples}")
        except Exception as error:
            watch.journal.failed("a worker", error)
        return batch

    return _like(timed, fetch)


def _wrap_optimizer(module: Any, watch: _Watch) -> None:
    module.register_optimizer_step_post_hook(watch.ended)


def _wrap_save(module: Any, watch: _Watch) -> None:
    module.save = _saving(module.save, watch)


def _wrap_save_file(module: Any, watch: _Watch) -> None:
    module.save_file = _saving(module.save_file, watch)


def _saving(save: Any, watch: _Watch) -> Any:
    """Return `save(what, where, ...)` with a line for each checkpoint."""

    def saving(*words: Any, **named: Any) -> Any:
        where = words[1] if len(words) > 1 else named.get("f", named.get("filename", ""))
        begun, at = _now(), _position(where)
        result = save(*words, **named)
        try:
            path = os.fspath(where) if isinstance(where, (str, os.PathLike)) else ""
            size = os.stat(path).st_size if path else max(0, _position(where) - at)
            watch.journal.write(f"C {begun} {_now()} {size} {json.dumps(str(path))}")
        except Exception as error:
            watch.journal.failed("a checkpoint", error)
        return result

    return _like(saving, save)


def _position(file: Any) -> int:
    """Return where an open file stands; 0 of anything else."""
    try:
        return int(file.tell())
    except Exception:
        return 0


def _wrap_dali(module: Any, watch: _Watch) -> None:
    """Watch DALI's iterators: each is its own loader, and an epoch ends by StopIteration."""
    base = getattr(module, "DALIGenericIterator", None)
    if base is None:
        return
    take = base.__next__

    def describe(loader: Any) -> dict[str, Any]:
        pipes = getattr(loader, "_pipes", ())
        return {
            "kind": "dali",
            "dataset": "DALI",
            "batch_size": getattr(pipes[0], "max_batch_size", None) if pipes else None,
            "num_workers": getattr(pipes[0], "num_threads", None) if pipes else None,
            "prefetch_factor": getattr(pipes[0], "_prefetch_queue_depth", None) if pipes else None,
            "place": _place(),
        }

    def __next__(self: Any) -> Any:
        loop = self.__dict__.get("_dlemu_loop")
        if loop is None and _thread() not in watch.inside:
            loop = self.__dict__["_dlemu_loop"] = watch.begin(self, describe)
        try:
            return watch.take(loop, take, self)
        except StopIteration:
            self.__dict__["_dlemu_loop"] = None
            raise

    make = base.__init__

    def __init__(self: Any, *words: Any, **named: Any) -> None:
        # It takes its first batch while it is made, and gives it to the first who asks.
        thread = _thread()
        watch.inside.add(thread)
        try:
            make(self, *words, **named)
        finally:
            watch.inside.discard(thread)

    base.__init__, base.__next__ = _like(__init__, make), _like(__next__, take)


def _wrap_webdataset(module: Any, watch: _Watch) -> None:
    """Watch WebDataset's pipelines where no DataLoader is around them."""
    pipeline = module.DataPipeline
    begin = pipeline.__iter__

    def describe(loader: Any) -> dict[str, Any]:
        for stage in loader.pipeline:
            if hasattr(stage, "num_workers"):  # the DataLoader of a WebLoader
                return {**_describe_torch(stage), "kind": "webdataset"}
        own = {"kind": "webdataset", "dataset": "webdataset.DataPipeline", "place": _place()}
        return {**own, **_files_of(loader)}

    class Iterator:
        def __init__(self, batches: Any, loop: _Loop) -> None:
            self.batches, self._dlemu_loop = batches, loop

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return watch.take(self._dlemu_loop, next, self.batches)

    def __iter__(self: Any) -> Any:
        if _in_worker() or _thread() in watch.inside:
            return begin(self)
        try:
            loop = watch.begin(self, describe)
        except Exception as error:
            watch.journal.failed("a pipeline", error)
            return begin(self)
        return Iterator(iter(begin(self)), loop)

    pipeline.__iter__ = _like(__iter__, begin)


def _exiting(leave: Any, watch: _Watch) -> Any:
    """Return `os._exit`, which runs nothing else at the end, with what was kept written first."""

    def exiting(status: int) -> None:
        if watch.journal.kept:
            watch.journal.write()
        leave(status)

    return exiting


def _like(function: Any, original: Any) -> Any:
    """Give a wrapper the names of what it wraps, for tracebacks and `inspect`."""
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(original, name):
            setattr(function, name, getattr(original, name))
    function.__wrapped__ = original
    return function


_WRAPPERS = {
    "torch.utils.data.dataloader": _wrap_torch_loader,
    "torch.utils.data._utils.fetch": _wrap_fetchers,
    "torch.optim.optimizer": _wrap_optimizer,
    "torch.serialization": _wrap_save,
    "safetensors.torch": _wrap_save_file,
    "nvidia.dali.plugin.pytorch": _wrap_dali,
    "webdataset.pipeline": _wrap_webdataset,
}


class _Finder:
    """Finds nothing itself: it has a module's own finder load it, and wraps what it brought."""

    def __init__(self, watch: _Watch) -> None:
        self.watch = watch
        self.busy: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the other finders have, with a loader that wraps afterwards."""
        if name not in _WRAPPERS or name in self.busy:
            return None
        self.busy.add(name)
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._follow(name, spec)
                    return spec
        finally:
            self.busy.discard(name)
        return None

    def _follow(self, name: str, spec: Any) -> None:
        load = getattr(spec.loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: Any) -> None:
            load(module)
            try:
                del spec.loader.exec_module
                _WRAPPERS[name](module, self.watch)
            except Exception as error:
                self.watch.journal.failed(name, error)

        try:
            spec.loader.exec_module = exec_module
        except Exception as error:
            self.watch.journal.failed(name, error)


def _go_on(own: str) -> None:
    """Run the sitecustomize that this one hides, as the interpreter would have done."""
    import importlib.machinery
    import importlib.util

    places = [p for p in sys.path if os.path.abspath(p or ".") != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _start() -> None:
    folder = os.environ.get("DLEMU_WATCH")
    own = os.path.dirname(os.path.abspath(__file__))
    # The job sees its own path: children find this folder in the environment.
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != own]
    if folder:
        import atexit

        watch = _Watch(_Journal(folder))
        atexit.register(watch.end)
        os.register_at_fork(after_in_child=watch.forked)
        os._exit = _like(_exiting(os._exit, watch), os._exit)
        watch.journal.write(f"S {_now()}")
        sys.meta_path.insert(0, _Finder(watch))
    _go_on(own)


if __name__ == "sitecustomize":
    _start()
