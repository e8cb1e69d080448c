"""What a worker reads with: files of the data folder, or objects of its bucket."""

from dlemu.loaders.objects import ObjectReader
from dlemu.loaders.source import Source
from dlemu.objects.store import store_of
from dlemu.storage.extents import ExtentReader, extent_reader
from dlemu.workload.objects import ObjectPath
from dlemu.workload.sections import BARE


def by_record(source: Source) -> bool:
    """Return whether samples of bare files are read one by one, wherever they lie."""
    reader, layout = source.workload.reader, source.layout
    return layout.samples_per_file > 1 and layout.format in BARE and reader.access == "random"


def open_storage(source: Source, *, number: int, max_open: int) -> ExtentReader:
    """Return the reader of worker `number` of the job; it keeps at most `max_open` files open.

    Raises:
        WorkloadError: a package is missing.
    """
    reader, layout, folder = source.workload.reader, source.layout, source.dataset.folder
    one, columns = layout.samples_per_file == 1, layout.format == "parquet"
    access = source.dataset.access
    if access is not None:
        assert isinstance(folder, ObjectPath)
        workload = source.workload
        return ObjectReader(
            # By worker, not by rank: one rank emulates many accelerators.
            store_of(access, number, folder.bucket),
            range_bytes=reader.range_bytes,
            in_flight=reader.gets_in_flight,
            whole=not columns and (one or workload.streamed or workload.by_tf_data),
            max_open=max_open,
        )
    return extent_reader(
        direct=source.direct,
        piece_bytes=reader.piece_bytes if one and not columns else reader.transfer_size,
        io_depth=reader.io_depth,
        max_open=1 if one or columns else max_open,
    )
