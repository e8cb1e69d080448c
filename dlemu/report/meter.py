"""The meter of a training loop with its report: `dlemu.Meter`."""

from dlemu import meter
from dlemu.report.run import present_run
from dlemu.report.text import render_text


class Meter(meter.StepMeter):
    """Measures a training loop as a run is measured."""

    def report(self) -> str:
        """Return the report on rank 0, an empty text elsewhere. All ranks call it.

        Raises:
            WorkloadError: an epoch has fewer than two steps.
        """
        document = self.document()
        return "" if document is None else render_text(present_run(document))
