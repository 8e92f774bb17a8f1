"""Do settings that a tuning chose fit the run that took them over? The warning where they may not.

What is fastest at one minibatch need not be so at another: a larger one is bound by other things.
"""

from __future__ import annotations

from dataclasses import replace

from cubemesh.schema import RunRecord, warn


def with_tuning(record: RunRecord) -> RunRecord:
    """`record`, with the warning `tuned-for-other-batch-size` if its settings were tuned at another
    batch size."""
    tuned, batch = record.spec.tuned, record.spec.batch_per_device
    if tuned is None or batch is None or batch == tuned.batch_per_device:
        return record
    doubt = warn(
        "tuned-for-other-batch-size",
        f"The settings were tuned at minibatch {tuned.batch_per_device}, and this is {batch}: "
        "another setting may be faster here.",
        f"Tune at this one: cubemesh tune NETWORK --batch-sizes {batch}.",
    )
    return replace(record, warnings=(*record.warnings, doubt))
