/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/record_slab.h"

#include "base/check.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

/* Pages are mapped directly: mmap aligns them to cache lines, and no call enters the program's
 * malloc under our lock. */
enum { PAGE_BYTES = 64 << 10 };

static void *next_of(const void *item)
{
    void *next;

    memcpy(&next, item, sizeof(next));
    return next;
}

static void set_next(void *item, void *next)
{
    memcpy(item, &next, sizeof(next));
}

static bool map_page(struct rs_record_slab *slab)
{
    char *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return false;
    set_next(page, slab->pages);
    slab->pages = page;
    /* The old page has at most one record left, which is recycled; further ones would be lost. */
    RS_ASSERT(slab->fresh_end - slab->fresh <= RS_RECORD_BYTES);
    if (slab->fresh < slab->fresh_end)
        rs_record_slab_give(slab, slab->fresh);
    slab->fresh = page + RS_RECORD_BYTES; /* the first record links the pages */
    slab->fresh_end = page + PAGE_BYTES;
    return true;
}

static bool has_two(const struct rs_record_slab *slab)
{
    size_t fresh = (size_t)(slab->fresh_end - slab->fresh) / RS_RECORD_BYTES;

    return (slab->recycled && (next_of(slab->recycled) || fresh > 0)) || fresh > 1;
}

bool rs_record_slab_reserve(struct rs_record_slab *slab)
{
    return RS_LIKELY(has_two(slab)) || map_page(slab);
}

void *rs_record_slab_take(struct rs_record_slab *slab)
{
    void *record = slab->recycled;

    if (record) {
        slab->recycled = next_of(record);
        return record;
    }
    if (slab->fresh == slab->fresh_end && !map_page(slab))
        return NULL;
    RS_ASSERT_SLOW(slab->fresh < slab->fresh_end);
    record = slab->fresh;
    slab->fresh += RS_RECORD_BYTES;
    return record;
}

void rs_record_slab_give(struct rs_record_slab *slab, void *record)
{
    RS_ASSERT_SLOW((uintptr_t)record % RS_RECORD_BYTES == 0);
    RS_ASSERT_SLOW(record != slab->recycled); /* the record was given back twice */
    set_next(record, slab->recycled);
    slab->recycled = record;
}

void rs_record_slab_destroy(struct rs_record_slab *slab)
{
    while (slab->pages) {
        void *page = slab->pages;
        slab->pages = next_of(page);
        munmap(page, PAGE_BYTES);
    }
    *slab = (struct rs_record_slab)RS_RECORD_SLAB_INIT;
}
