"""Why a mean average precision is 0, as far as labels and detections show it.

The causes are tried in the order in which one excludes the next: no labelled box inside its image,
no box predicted, all predicted of classes without labelled boxes, labelled boxes smaller than a
cell, labelled boxes without a cell, and otherwise boxes that do not yet overlap enough.
"""

from __future__ import annotations

from cubemesh.detection.average_precision import DetectionScores
from cubemesh.detection.labels import THRESHOLD, Grid
from cubemesh.units import format_count, format_list

LONGER = "Train for more epochs, or change learning_rate."


def why_zero(found: DetectionScores, grid: Grid) -> tuple[str, str] | None:
    """The cause and the remedy; None for an mAP50 above 0."""
    if found.mean_ap50 > 0:
        return None
    boxes, detections = sum(found.boxes), sum(found.detections)
    if not boxes:
        if found.outside:
            return (
                f"All {format_count(found.outside)} labelled boxes of the validation images have "
                "no area inside their image.",
                "Corners are left, top, right and bottom in pixels of the image file, from its "
                "top left corner; COCO's are left, top, width and height.",
            )
        return (
            "The validation images have no labelled box that counts.",
            "Choose validation images with objects, and check the names of their classes.",
        )
    if not detections:
        return (
            f"No cell has a coverage above {THRESHOLD:g}, so no box is predicted; the highest is "
            f"{found.highest:.2g}.",
            LONGER,
        )
    labelled = {number for number, count in enumerate(found.boxes) if count}
    predicted = {number for number, count in enumerate(found.detections) if count}
    if not labelled & predicted:
        return (
            f"All {format_count(detections)} predicted boxes are of {_classes(predicted)}, and the "
            f"validation images have boxes of {_classes(labelled)}.",
            "Check that training and validation images have the same classes.",
        )
    if found.small > boxes / 2:
        return (
            f"{format_count(found.small)} of {format_count(boxes)} labelled boxes are smaller than "
            f"a cell of {grid.stride:g} × {grid.stride:g} pixels in the network's image.",
            f"Set image_size above {grid.size}, or crop the images around the objects.",
        )
    if found.hidden > boxes / 2:
        return (
            f"{format_count(found.hidden)} of {format_count(boxes)} labelled boxes have no cell, "
            "since smaller ones cover it.",
            f"Set image_size above {grid.size}, so that fewer objects share a cell.",
        )
    outside = f" {format_count(found.outside)} more lie outside." if found.outside else ""
    return (
        f"{format_count(detections)} boxes are predicted, and each overlaps too little with the "
        f"{format_count(boxes)} labelled boxes of its class: the highest intersection over "
        f"union is {found.best_overlap:.2f}, and 0.5 counts.{outside}",
        LONGER,
    )


def _classes(numbers: set[int]) -> str:
    shown = [str(number) for number in sorted(numbers)]
    more = len(shown) - 10
    listed = format_list([*shown[:10], f"{more} more"] if more > 0 else shown)
    return f"class{'es' if len(shown) > 1 else ''} {listed}"
