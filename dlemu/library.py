"""dlemu in Python: a search that keeps its tables, and results as text and in a notebook."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dlemu.config.model import Workload
from dlemu.errors import WorkloadError
from dlemu.ranks.world import Alone, World
from dlemu.report.blocks import Block
from dlemu.report.html import render_html
from dlemu.report.present import present
from dlemu.report.sizing import draw, write_table
from dlemu.report.text import render_text
from dlemu.sizing.answers import Sized, answers_twice, document_of
from dlemu.sizing.measured import size_all
from dlemu.terminal import Say, say


class _Documented(Protocol):
    @property
    def document(self) -> Mapping[str, Any]: ...


class ResultText(str):
    """A result as the terminal shows it; a notebook shows its page."""

    blocks: Sequence[Block]

    def _repr_html_(self) -> str:
        return render_html(self.blocks)


def show(result: _Documented) -> ResultText:
    """Return a result of `size`, `predict` or `dataset_size` to be printed or shown.

        print(dlemu.show(dlemu.predict(workload)))

    A notebook shows tables and plots: end a cell with `dlemu.show(result)`.
    """
    blocks = present(result.document)
    shown = ResultText(render_text(blocks))
    shown.blocks = blocks
    return shown


def size(workload: Workload, *, world: World | None = None, say: Say = say) -> Sized:
    """Find by measurement the most accelerators that the storage below the data folder feeds.

        workload = dlemu.load_workload("unet3d_h100", {"dataset.data_folder": "/mnt/nvme/unet3d"})
        print(dlemu.size(workload).num_accelerators)

    All ranks of `world` call it and get the answer; without one, this process runs alone. The keys
    size.* say how to search. The results are kept in output.folder, where an interrupted search
    continues. Rank 0 calls `say` with each step of the search; the default prints it.

    Raises:
        WorkloadError: there are several targets or workloads, a target is no folder, or a key is
            out of range.
        DatasetError: the dataset is missing, or too small for a number that has to be tried.
        RunError: a run failed, or a result cannot be written.
    """
    if max(len(workload.size.targets), len(workload.size.workloads)) > 1:
        raise WorkloadError(
            "dlemu.size answers for one target and one workload; call it for each of size.targets "
            "and size.workloads"
        )
    if answers_twice(workload):
        raise WorkloadError(
            "dlemu.size gives one answer, and a cache has two: set cache.warm=false for the first "
            "epoch with train.epochs=1, or cache.warm=true for warm ones"
        )
    (answer,) = size_all(
        workload,
        world or Alone(),
        say,
        on_answer=lambda answers, is_last: keep(answers, say),
    )
    return answer


def keep(answers: Sequence[Sized], say: Say) -> None:
    """Write the tables of the answers so far, and draw them, beside sizing.json."""
    folder, document = answers[-1].folder, document_of(answers)
    write_table(folder, document)
    try:
        draw(folder, document)
    except ModuleNotFoundError:
        say("no plot: matplotlib is missing; pip install 'dlemu[plot]'")
