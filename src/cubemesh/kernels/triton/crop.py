# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Crop, resize, mirror and scale to 0..1 of a whole minibatch in one Triton kernel.

Each program computes a block of one image's pixels, all channels: it loops over the source pixels
under its filter (`frameworks/pytorch/input/crops.py`) and reads each source byte in place. Images
differ in size, strides and box, and so in the length of the loops. Positions are fp64 and weights
their differences: at pixel 900 fp32 has four digits after the point.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def crop_kernel(
    out, sources, shapes, boxes, out_height, out_width, stride_n, stride_c, stride_y, stride_x,
    channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """`out` (…, channels, out_height, out_width) by its strides. For each image: `sources`, the
    address of its first byte; `shapes` (images, 7) int64: row in `out`, height, width, strides of
    channel, row and column in bytes, 1 where it is mirrored; `boxes` (images, 4) float64."""
    image = tl.program_id(1)
    source = tl.load(sources + image).to(tl.pointer_type(tl.uint8))
    row = tl.load(shapes + image * 7)
    height, width = tl.load(shapes + image * 7 + 1), tl.load(shapes + image * 7 + 2)
    plane, line = tl.load(shapes + image * 7 + 3), tl.load(shapes + image * 7 + 4)
    pixel, mirrored = tl.load(shapes + image * 7 + 5), tl.load(shapes + image * 7 + 6)
    left, top = tl.load(boxes + image * 4), tl.load(boxes + image * 4 + 1)
    right, bottom = tl.load(boxes + image * 4 + 2), tl.load(boxes + image * 4 + 3)
    scale_x, scale_y = (right - left) / out_width, (bottom - top) / out_height
    reach_x, reach_y = tl.maximum(scale_x, 1.0), tl.maximum(scale_y, 1.0)
    reach32_x, reach32_y = reach_x.to(tl.float32), reach_y.to(tl.float32)

    at = tl.program_id(0) * block + tl.arange(0, block)
    keep = at < out_height * out_width
    y, x = at // out_width, at % out_width
    from_x = tl.where(mirrored != 0, out_width - 1 - x, x)
    centre_x = left + (from_x.to(tl.float64) + 0.5) * scale_x
    centre_y = top + (y.to(tl.float64) + 0.5) * scale_y
    first_x = tl.maximum(tl.floor(centre_x - reach_x + 0.5), 0.0).to(tl.int32)
    first_y = tl.maximum(tl.floor(centre_y - reach_y + 0.5), 0.0).to(tl.int32)
    offset_x = (first_x.to(tl.float64) + 0.5 - centre_x).to(tl.float32)
    offset_y = (first_y.to(tl.float64) + 0.5 - centre_y).to(tl.float32)

    total = tl.zeros([block], tl.float32)
    red = tl.zeros([block], tl.float32)
    green = tl.zeros([block], tl.float32)
    blue = tl.zeros([block], tl.float32)
    for j in range(tl.ceil(2.0 * reach_y).to(tl.int32)):
        from_row = first_y + j
        weight_y = 1.0 - tl.abs(offset_y + j) / reach32_y
        weight_y = tl.where(from_row < height, tl.maximum(weight_y, 0.0), 0.0)
        for i in range(tl.ceil(2.0 * reach_x).to(tl.int32)):
            column = first_x + i
            weight_x = 1.0 - tl.abs(offset_x + i) / reach32_x
            weight_x = tl.where(column < width, tl.maximum(weight_x, 0.0), 0.0)
            weight = weight_x * weight_y
            read = keep & (weight > 0.0)
            byte = source + from_row.to(tl.int64) * line + column.to(tl.int64) * pixel
            total += weight
            red += weight * tl.load(byte, mask=read, other=0).to(tl.float32)
            if channels == 3:
                green += weight * tl.load(byte + plane, mask=read, other=0).to(tl.float32)
                blue += weight * tl.load(byte + 2 * plane, mask=read, other=0).to(tl.float32)

    white = 1.0 / (total * 255.0)
    to = out + row * stride_n + y * stride_y + x * stride_x
    tl.store(to, (red * white).to(out.dtype.element_ty), mask=keep)
    if channels == 3:
        tl.store(to + stride_c, (green * white).to(out.dtype.element_ty), mask=keep)
        tl.store(to + 2 * stride_c, (blue * white).to(out.dtype.element_ty), mask=keep)
