/* SPDX-License-Identifier: Apache-2.0 */
#include "charge/array_size.h"

#include "base/check.h"

enum {
    UNIT_BYTES = 4 << 10,
    TILE_BYTES = 64,
    TILE_ROWS = 8,
    SPARSE = 0x40, /* CUDA_ARRAY3D_SPARSE, and: */
    DEFERRED = 0x80,
    LAYERED = 0x01,
    CUBE = 0x04,
    FORMATS_BY_CHANNEL_END = 0x40,
};

/* Bits of one element with all its channels.  Formats of video and textures count as the largest of
 * their kind: a limit may count too much, never too little. */
static size_t element_bits(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    unsigned format = (unsigned)descriptor->Format;
    size_t channels = descriptor->NumChannels ? descriptor->NumChannels : 1;

    switch (format) {
    case 0x01: /* integers of 8 bits */
    case 0x08:
        return 8 * channels;
    case 0x02: /* of 16, and half precision */
    case 0x09:
    case 0x10:
        return 16 * channels;
    case 0xc0: /* normalized integers of 8 bits, one, two and four channels */
    case 0xc6:
        return 8;
    case 0xc1:
    case 0xc7:
        return 16;
    case 0xc2:
    case 0xc8:
    case 0xc3 + 1: /* of 16 bits, two channels */
    case 0xc9 + 1:
    case 0x50: /* 10, 10, 10 and 2 bits */
        return 32;
    case 0xc3:
    case 0xc9:
        return 16;
    case 0xc5:
    case 0xcb:
        return 64;
    default:
        /* Compressed textures: at most 16 bytes for 4 x 4 elements. */
        if (format >= 0x91 && format <= 0x9e)
            return 8;
        /* 8-bit video with 4:2:0 and 4:2:2 sampling: 12 and 16 bits. */
        if (format == 0xb0 || format == 0xa2)
            return 16;
        return format < FORMATS_BY_CHANNEL_END ? 32 * channels : 64;
    }
}

/* Bytes of one mip level; SIZE_MAX on overflow. */
static size_t level_bytes(size_t width, size_t height, size_t depth, size_t bits)
{
    size_t row_bytes, rows, bytes;

    if (__builtin_mul_overflow(width, bits, &bytes) || !rs_round_up(bytes, 8, &bytes) ||
        !rs_round_up(bytes / 8, TILE_BYTES, &row_bytes) || !rs_round_up(height, TILE_ROWS, &rows) ||
        __builtin_mul_overflow(row_bytes, rows, &bytes) ||
        __builtin_mul_overflow(bytes, depth, &bytes))
        return SIZE_MAX;
    return bytes;
}

size_t rs_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    size_t width = descriptor->Width, height = rs_max(descriptor->Height, 1);
    size_t depth = rs_max(descriptor->Depth, 1), total = 0;
    bool has_layers = descriptor->Flags & (LAYERED | CUBE);

    if (width == 0 || (descriptor->Flags & (SPARSE | DEFERRED)))
        return 0;
    for (unsigned level = 0; level < rs_max(levels, 1) && level < 64; level++) {
        size_t bytes = level_bytes(width, height, depth, element_bits(descriptor));
        if (bytes == SIZE_MAX || __builtin_add_overflow(total, bytes, &total))
            return SIZE_MAX;
        width = rs_max(width / 2, 1);
        height = rs_max(height / 2, 1);
        depth = has_layers ? depth : rs_max(depth / 2, 1);
    }
    return rs_round_up(total, UNIT_BYTES, &total) ? total : SIZE_MAX;
}
