/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings.  If the first byte is odd, the checks of the header, the chunks and what is in them
 * are made right first, since no random change would meet them. */
#include "reader.h"

#include <sys/mman.h>

enum { FILE_BYTES_MAX = 64 << 10 };

static size_t mend_event(char *at, size_t left, size_t event_bytes, uint64_t sequence)
{
    struct rs_recording_event event;

    if (left < event_bytes || event_bytes < sizeof(event))
        return left;
    memcpy(&event, at, sizeof(event));
    event.size_and_check &= ((uint64_t)1 << RS_RECORDING_SIZE_BITS) - 1;
    event.size_and_check |= rs_recording_event_check(&event, sequence) << RS_RECORDING_SIZE_BITS;
    memcpy(at, &event, sizeof(event));
    return event_bytes;
}

static size_t mend_definition(char *at, size_t left, uint64_t sequence)
{
    struct rs_recording_definition *one = (void *)at;
    size_t bytes;

    if (left < sizeof(*one))
        return left;
    bytes = sizeof(*one) + ((size_t)one->text_bytes + 7) / 8 * 8;
    if (bytes > left)
        return left;
    one->check = rs_recording_definition_check(one, sequence);
    return bytes;
}

static void mend_chunk(char *bytes, size_t length, size_t event_bytes)
{
    struct rs_recording_chunk *chunk = (void *)bytes;
    size_t used = sizeof(*chunk);

    if (length < sizeof(*chunk))
        return;
    chunk->magic = RS_RECORDING_CHUNK_MAGIC;
    chunk->kind = 1 + chunk->kind % 2;
    chunk->recording = 0;
    chunk->sequence %= 16;
    chunk->check = rs_recording_chunk_check(chunk);
    while (used < length)
        used += chunk->kind == RS_RECORDING_DEFINITIONS
                    ? mend_definition(bytes + used, length - used, chunk->sequence)
                    : mend_event(bytes + used, length - used, event_bytes, chunk->sequence);
}

static void mend(char *content, size_t length)
{
    struct rs_recording_header *header = (void *)content;
    size_t chunk_bytes;

    if (length < sizeof(*header))
        return;
    memcpy(header->magic, RS_RECORDING_MAGIC, sizeof(header->magic));
    header->byte_order = RS_RECORDING_BYTE_ORDER;
    header->major = RS_RECORDING_MAJOR;
    header->recording = 0;
    header->check = rs_recording_header_check(header);
    chunk_bytes = header->chunk_bytes;
    if (chunk_bytes < sizeof(struct rs_recording_chunk) || chunk_bytes % 8 != 0)
        return;
    for (size_t at = header->header_bytes; at % 8 == 0 && at < length; at += chunk_bytes)
        mend_chunk(content + at, rs_min(chunk_bytes, length - at), header->event_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length)
{
    static char path[64];
    static _Alignas(8) char content[FILE_BYTES_MAX];

    if (!path[0])
        snprintf(path, sizeof(path), "/proc/self/fd/%d", memfd_create("fuzzer", MFD_CLOEXEC));
    if (length == 0 || length - 1 > sizeof(content))
        return 0;
    memcpy(content, input + 1, length - 1);
    if (input[0] % 2)
        mend(content, length - 1);
    read_recording(path, content, length - 1);
    return 0;
}
