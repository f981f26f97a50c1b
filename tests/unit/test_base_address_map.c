/* SPDX-License-Identifier: Apache-2.0 */
/* The address map against a plain model, without host memory, and under eight threads. */
#include "unit.h"

#include "base/address_map.h"
#include "base/check.h"
#include "count_ranges.h"
#include "host_memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KIB (1ull << 10)
#define GIB (1ull << 30)

static char owners[8];

/* ---- the mapping made last ---- */

static __thread struct {
    void *address;
    size_t bytes;
} last_mapping; /* without huge pages, so that what is touched can be told */

static void note_mapping(void *address, size_t bytes)
{
    last_mapping.address = address;
    last_mapping.bytes = bytes;
    (void)madvise(address, bytes, MADV_NOHUGEPAGE);
}

/* ---- random numbers, the same in every run ---- */

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* ---- one range ---- */

TEST(finds_every_address_inside_and_none_outside)
{
    static const struct {
        uint64_t start, size_bytes;
    } cases[] = {
        {0x7f0000000000, 512},           {0x7f0000000200, 1}, {0, 4 * KIB}, {512, 16 * GIB},
        {0x7f003ffffe00, 512},           /* the last unit of a region */
        {0x7f003ffffe00, 1024},          /* over a region's end */
        {0x7f0000000000, 3 * GIB + 513}, /* over several */
        {(1ull << 57) - 512, 512},       /* the last unit there is */
        {(1ull << 44) - 512, 40 * GIB},  /* over the end of a leaf */
        {0x7f0000008000, 8 * GIB},       /* first bit of a word */
        {0x7f0000200000, 64 * GIB},      /* first word of a group */
        {0x7f0008000000, 16384 * GIB},   /* first group of a top word, 16 TiB */
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_address_map *map = rs_address_map_create();
        uint64_t start = cases[i].start, size = cases[i].size_bytes;
        uint64_t offsets[] = {0, size - 1, size / 2, size / 3, size > GIB ? GIB : 0};
        struct rs_range range;

        assert_true(rs_address_map_insert(map, start, size, &owners[0]));
        for (size_t j = 0; j < RS_ARRAY_LENGTH(offsets); j++) {
            memset(&range, 0, sizeof(range));
            assert_true(rs_address_map_find_inside(map, start + offsets[j], &range));
            assert_int_equal(range.start, start);
            assert_int_equal(range.size_bytes, size);
            assert_ptr_equal(range.owner, &owners[0]);
        }
        assert_true(rs_address_map_find(map, start, &range));
        assert_false(rs_address_map_find(map, start + 512, &range));
        assert_false(rs_address_map_find(map, start + 1, &range));
        assert_false(rs_address_map_find_inside(map, start + size, &range));
        assert_false(rs_address_map_find_inside(map, start - 1, &range));
        assert_false(rs_address_map_find_inside(map, UINT64_MAX, &range));
        rs_address_map_destroy(map);
    }
}

TEST(an_empty_map_finds_nothing)
{
    struct rs_address_map *map = rs_address_map_create();
    struct rs_range range = {1, 2, NULL};

    assert_int_equal(count_ranges(map), 0);
    assert_false(rs_address_map_find(map, 0, &range));
    assert_false(rs_address_map_find(map, UINT64_MAX, &range));
    assert_false(rs_address_map_find_inside(map, 0, &range));
    assert_false(rs_address_map_find_inside(map, 0x7f0000000000, &range));
    assert_false(rs_address_map_remove(map, 0, NULL));
    assert_false(rs_address_map_remove(map, UINT64_MAX, NULL));
    assert_int_equal(range.start, 1); /* outputs only on success */
    assert_int_equal(range.size_bytes, 2);
    rs_address_map_destroy(map);
    rs_address_map_destroy(NULL);
}

TEST(a_range_at_the_same_start_is_replaced)
{
    struct rs_address_map *map = rs_address_map_create();
    struct rs_range range;

    assert_true(rs_address_map_insert(map, 0x1000, 8192, &owners[0]));
    assert_true(rs_address_map_insert(map, 0x1000, 512, &owners[1]));
    assert_int_equal(count_ranges(map), 1);
    assert_true(rs_address_map_find(map, 0x1000, &range));
    assert_int_equal(range.size_bytes, 512);
    assert_ptr_equal(range.owner, &owners[1]);
    assert_false(rs_address_map_find_inside(map, 0x1000 + 512, &range));
    /* the owner that lost it cannot take it away */
    assert_false(rs_address_map_remove(map, 0x1000, &owners[0]));
    assert_true(rs_address_map_remove(map, 0x1000, &owners[1]));
    assert_false(rs_address_map_find(map, 0x1000, &range));
    rs_address_map_destroy(map);
}

static bool is_of_another(const struct rs_range *range, bool is_inside)
{
    (void)is_inside;
    return range->owner != &owners[0];
}

/* Ranges of owners[0] have lost their memory, which the driver gave out again otherwise. */
TEST(ranges_that_do_not_count_are_stepped_over)
{
    struct rs_address_map *map = rs_address_map_create();
    struct rs_range range;

    for (uint64_t start = 0x10000; start < 0x20000; start += 0x1000)
        assert_true(rs_address_map_insert(map, start, 0x1000, &owners[0]));
    assert_ptr_equal(rs_address_map_replace(map, 0x14000, 0x8000, &owners[1]), &owners[0]);
    assert_ptr_equal(rs_address_map_replace(map, 0x1d200, 0x200, &owners[2]), &owners[2]);
    assert_true(rs_address_map_find_inside_if(map, 0x1bfff, is_of_another, &range));
    assert_ptr_equal(range.owner, &owners[1]);
    assert_int_equal(range.start, 0x14000);
    assert_true(rs_address_map_find_inside_if(map, 0x1d3ff, is_of_another, &range));
    assert_ptr_equal(range.owner, &owners[2]);
    assert_false(rs_address_map_find_inside_if(map, 0x1d400, is_of_another, &range));
    assert_false(rs_address_map_find_inside_if(map, 0x1c000, is_of_another, &range));
    assert_false(rs_address_map_find_inside_if(map, 0x13fff, is_of_another, &range));
    assert_false(rs_address_map_find_inside_if(map, 0x10000, is_of_another, &range));
    assert_true(rs_address_map_find_inside(map, 0x13fff, &range));
    rs_address_map_destroy(map);
}

TEST(only_the_owner_or_nobody_in_particular_removes)
{
    struct rs_address_map *map = rs_address_map_create();

    assert_true(rs_address_map_insert(map, 0, 512, &owners[0]));
    assert_true(rs_address_map_insert(map, 512, 512, &owners[0]));
    assert_false(rs_address_map_remove(map, 0, &owners[1]));
    assert_true(rs_address_map_remove(map, 0, &owners[0]));
    assert_false(rs_address_map_remove(map, 0, &owners[0]));
    assert_true(rs_address_map_remove(map, 512, NULL));
    assert_false(rs_address_map_remove(map, 512, NULL));
    assert_int_equal(count_ranges(map), 0);
    rs_address_map_destroy(map);
}

TEST(addresses_that_no_device_has_are_refused)
{
    struct rs_address_map *map = rs_address_map_create();
    struct rs_range range;

    assert_false(rs_address_map_insert(map, 1ull << 57, 512, &owners[0]));
    assert_false(rs_address_map_find(map, 1ull << 57, &range));
    assert_false(rs_address_map_find_inside(map, 1ull << 57, &range));
    assert_false(rs_address_map_remove(map, 1ull << 57, NULL));
    rs_address_map_destroy(map);
}

/* ---- against a model ---- */

/* The model: an array of disjoint cells, each of which may hold one range. */
enum { CELLS = 3000 };

struct cell {
    uint64_t from, room_bytes; /* where a range of this cell may lie */
    bool used;
    struct rs_range range;
};

static void cells_init(struct cell *cells, uint64_t *seed)
{
    static const uint64_t rooms[] = {512, 1024, 64 * KIB, 2048 * KIB, GIB, 3 * GIB, 16 * GIB};
    uint64_t at = 0x10000000000;

    for (size_t i = 0; i < CELLS; i++) {
        uint64_t room = rooms[next_random(seed) % (i % 50 == 0 ? 7 : 4)];
        cells[i] = (struct cell){.from = at, .room_bytes = room};
        at += room;
        if (next_random(seed) % 100 == 0)
            at += next_random(seed) % 64 * GIB / 512 * 512;
    }
}

static void cell_toggle(struct rs_address_map *map, struct cell *cell, uint64_t *seed)
{
    struct rs_range *range = &cell->range;
    uint64_t units = cell->room_bytes / 512;

    if (cell->used && next_random(seed) % 8) {
        assert_false(rs_address_map_remove(map, range->start, &owners[7]));
        assert_true(
            rs_address_map_remove(map, range->start, next_random(seed) % 2 ? range->owner : NULL));
        cell->used = false;
        return;
    }
    if (!cell->used)
        range->start = cell->from + next_random(seed) % units * 512;
    range->size_bytes = 1 + next_random(seed) % (cell->from + cell->room_bytes - range->start);
    range->owner = &owners[next_random(seed) % 7];
    assert_true(rs_address_map_insert(map, range->start, range->size_bytes, range->owner));
    cell->used = true;
}

static void cell_check(struct rs_address_map *map, const struct cell *cell, uint64_t *seed)
{
    uint64_t address = cell->from + next_random(seed) % cell->room_bytes;
    bool inside = cell->used && address >= cell->range.start &&
                  address - cell->range.start < cell->range.size_bytes;
    struct rs_range range;

    assert_int_equal(rs_address_map_find_inside(map, address, &range), inside);
    if (inside)
        assert_memory_equal(&range, &cell->range, sizeof(range));
    if (cell->range.start == 0)
        return;
    assert_int_equal(rs_address_map_find(map, cell->range.start, &range), cell->used);
    if (cell->used)
        assert_memory_equal(&range, &cell->range, sizeof(range));
}

TEST(behaves_as_a_plain_model)
{
    struct cell *cells = calloc(CELLS, sizeof(*cells));
    struct rs_address_map *map = rs_address_map_create();
    uint64_t seed = 20261121;
    size_t used = 0;

    cells_init(cells, &seed);
    for (size_t step = 0; step < 200000; step++) {
        /* half of the steps at few cells, so that the same words empty and fill again */
        size_t i = next_random(&seed) % (step % 2 ? CELLS : 40);
        cell_toggle(map, &cells[i], &seed);
        for (int probe = 0; probe < 3; probe++)
            cell_check(map, &cells[next_random(&seed) % CELLS], &seed);
    }
    for (size_t i = 0; i < CELLS; i++)
        used += cells[i].used;
    assert_int_equal(count_ranges(map), used);
    for (size_t i = 0; i < CELLS; i++)
        if (cells[i].used)
            assert_true(rs_address_map_remove(map, cells[i].range.start, NULL));
    assert_int_equal(count_ranges(map), 0);
    rs_address_map_destroy(map);
    free(cells);
}

TEST(a_hundred_thousand_neighbours_are_kept_apart)
{
    enum { COUNT = 100000 };
    struct rs_address_map *map = rs_address_map_create();
    struct rs_range range;

    for (uint64_t i = 0; i < COUNT; i++)
        assert_true(rs_address_map_insert(map, i * 512, 512, &owners[i % 8]));
    assert_int_equal(count_ranges(map), COUNT);
    for (uint64_t i = 0; i < COUNT; i += 2)
        assert_true(rs_address_map_remove(map, i * 512, &owners[i % 8]));
    for (uint64_t i = 0; i < COUNT; i++) {
        assert_int_equal(rs_address_map_find_inside(map, i * 512 + 511, &range), i % 2);
        if (i % 2)
            assert_int_equal(range.start, i * 512);
    }
    rs_address_map_destroy(map);
}

static size_t touched_pages(void)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE), touched = 0;
    size_t pages = (last_mapping.bytes + page_bytes - 1) / page_bytes;
    unsigned char *resident = calloc(pages, 1);

    assert_int_equal(mincore(last_mapping.address, last_mapping.bytes, resident), 0);
    for (size_t i = 0; i < pages; i++)
        touched += resident[i] & 1;
    free(resident);
    return touched;
}

/* Else an allocation would wait for all that its shard knows. */
TEST(an_insertion_that_grows_a_table_moves_few_ranges)
{
    enum { LARGE = 256 << 10 };
    struct rs_address_map *map = rs_address_map_create();
    uint64_t i = 0;

    assert_true(rs_address_map_insert(map, i++ * 512, 512, &owners[0]));
    for (last_mapping.bytes = 0; last_mapping.bytes < LARGE; i++)
        assert_true(rs_address_map_insert(map, i * 512, 512, &owners[0]));
    assert_in_range(touched_pages(), 1, 4);
    assert_int_equal(count_ranges(map), i);
    rs_address_map_destroy(map);
}

/* Between two sizes of a table a range is in either; all that can be done with one is done. */
TEST(ranges_are_kept_while_tables_grow)
{
    enum { COUNT = 60000 };
    struct rs_address_map *map = rs_address_map_create();
    unsigned char *owner = calloc(COUNT, 1); /* and one; 0: not there */
    uint64_t seed = 7;
    size_t count = 0;

    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t at = next_random(&seed) % (i + 1), what = next_random(&seed) % 8;
        struct rs_range range;
        count += 1;
        owner[i] = 1;
        assert_true(rs_address_map_insert(map, i * 512, 512, &owners[0]));
        assert_int_equal(rs_address_map_find(map, at * 512, &range), owner[at] != 0);
        if (owner[at])
            assert_ptr_equal(range.owner, &owners[owner[at] - 1]);
        if (what == 0) {
            assert_int_equal(rs_address_map_remove(map, at * 512, NULL), owner[at] != 0);
            count -= owner[at] != 0;
            owner[at] = 0;
        } else {
            assert_true(rs_address_map_insert(map, at * 512, 512, &owners[what]));
            count += owner[at] == 0;
            owner[at] = (unsigned char)(what + 1);
        }
        assert_int_equal(rs_address_map_owner(map, at * 512) != NULL, owner[at] != 0);
    }
    assert_int_equal(count_ranges(map), count);
    for (uint64_t i = 0; i < COUNT; i++)
        assert_ptr_equal(rs_address_map_owner(map, i * 512),
                         owner[i] ? &owners[owner[i] - 1] : NULL);
    rs_address_map_destroy(map);
    free(owner);
}

/* ---- iteration ---- */

struct visit {
    struct rs_address_map *map;
    size_t calls, stop_after;
    uint64_t last_start;
};

static bool remove_visited(void *data, const struct rs_range *range)
{
    struct visit *visit = data;

    assert_true(visit->calls == 0 || range->start < visit->last_start); /* so: none twice */
    visit->last_start = range->start;
    visit->calls++;
    assert_true(rs_address_map_remove(visit->map, range->start, range->owner));
    return visit->calls != visit->stop_after;
}

static bool is_wanted(void *wanted, void *owner)
{
    return owner == wanted;
}

TEST(a_range_is_removed_only_if_it_is_right)
{
    struct rs_address_map *map = rs_address_map_create();
    struct rs_range range;

    assert_non_null(map);
    assert_true(rs_address_map_insert(map, 512, 512, &owners[0]));
    assert_false(rs_address_map_remove_if(map, 512, &owners[0], is_wanted, &owners[1]));
    assert_false(rs_address_map_remove_if(map, 512, &owners[1], is_wanted, &owners[1]));
    assert_true(rs_address_map_find(map, 512, &range));
    assert_true(rs_address_map_remove_if(map, 512, &owners[0], is_wanted, &owners[0]));
    assert_false(rs_address_map_find(map, 512, &range));
    assert_false(rs_address_map_remove_if(map, 512, &owners[0], is_wanted, &owners[0]));
    rs_address_map_destroy(map);
}

TEST(each_visits_all_and_may_remove_them)
{
    enum { COUNT = 5000 };
    struct visit visit = {.map = rs_address_map_create(), .stop_after = 100};
    uint64_t seed = 7, at = 0;

    for (size_t i = 0; i < COUNT; i++) {
        at += 512 + next_random(&seed) % (i % 10 ? 64 * KIB : 4 * GIB) / 512 * 512;
        assert_true(rs_address_map_insert(visit.map, at, 512, &owners[i % 8]));
    }
    rs_address_map_each(visit.map, remove_visited, &visit);
    assert_int_equal(visit.calls, 100);
    assert_int_equal(count_ranges(visit.map), COUNT - 100);
    rs_address_map_each(visit.map, remove_visited, &visit);
    assert_int_equal(visit.calls, COUNT);
    assert_int_equal(count_ranges(visit.map), 0);
    rs_address_map_each(visit.map, remove_visited, &visit);
    assert_int_equal(visit.calls, COUNT);
    rs_address_map_destroy(visit.map);
}

/* ---- without host memory ---- */

TEST(creation_fails_without_memory)
{
    host_left = 0;
    assert_null(rs_address_map_create());
    host_left = -1;
}

TEST(insertion_fails_cleanly_without_memory_and_recovers)
{
    struct rs_address_map *map = rs_address_map_create();
    struct rs_range range;

    for (int mappings = 0; mappings < 2; mappings++) { /* the leaf, then its region */
        host_left = mappings;
        assert_false(rs_address_map_insert(map, 0x1000, 512, &owners[0]));
        assert_int_equal(count_ranges(map), 0);
        assert_false(rs_address_map_find(map, 0x1000, &range));
        assert_false(rs_address_map_find_inside(map, 0x1000, &range));
    }
    host_left = -1;
    assert_true(rs_address_map_insert(map, 0x1000, 512, &owners[0]));
    assert_true(rs_address_map_find_inside(map, 0x1000, &range));
    rs_address_map_destroy(map);
}

TEST(full_tables_refuse_lose_nothing_and_still_remove)
{
    enum { TRIED = 20000 };
    struct rs_address_map *map = rs_address_map_create();
    bool *entered = calloc(TRIED, sizeof(*entered));
    struct rs_range range;
    size_t count = 0;

    assert_true(rs_address_map_insert(map, 0, 512, &owners[0])); /* makes the region */
    entered[0] = true;
    host_left = 0;
    for (uint64_t i = 0; i < TRIED; i++) {
        entered[i] = entered[i] || rs_address_map_insert(map, i * 512, 512, &owners[0]);
        count += entered[i];
    }
    assert_int_equal(count, 64 * 63); /* the first tables: 64 shards of 64 slots, one stays free */
    for (uint64_t i = 0; i < TRIED; i++) {
        assert_int_equal(rs_address_map_find(map, i * 512, &range), entered[i]);
        assert_int_equal(rs_address_map_find_inside(map, i * 512 + 1, &range), entered[i]);
        if (entered[i]) /* replacing needs no room */
            assert_true(rs_address_map_insert(map, i * 512, 256, &owners[1]));
    }
    for (uint64_t i = 0; i < TRIED; i++)
        assert_int_equal(rs_address_map_remove(map, i * 512, &owners[1]), entered[i]);
    assert_int_equal(count_ranges(map), 0);
    host_left = -1;
    rs_address_map_destroy(map);
    free(entered);
}

/* ---- threads ---- */

enum { THREADS = 8, PER_THREAD = 300, ROUNDS = 400 };

/* Each thread owns every eighth position of one array of neighbours, so that all share shards,
 * words and cache lines.  A range stays in for a while; everybody looks for it then. */
struct arena {
    struct rs_address_map *map;
    struct {
        atomic_uint state; /* 0 out, else readers inside * 2 + 1 */
    } positions[THREADS * PER_THREAD];
    atomic_bool stop;
    atomic_size_t failures, checks;
};

struct worker {
    struct arena *arena;
    unsigned number;
    pthread_t thread;
};

static const uint64_t arena_start = 0x7f0000000000 + GIB - 512 * 1000; /* over a region's end */

static uint64_t position_start(size_t position)
{
    return arena_start + position * 1024;
}

/* The owner takes a range out only when no reader relies on it. */
static bool pin(struct arena *arena, size_t position)
{
    unsigned seen = atomic_load(&arena->positions[position].state);

    while (seen % 2)
        if (atomic_compare_exchange_weak(&arena->positions[position].state, &seen, seen + 2))
            return true;
    return false;
}

static void unpin(struct arena *arena, size_t position)
{
    atomic_fetch_sub(&arena->positions[position].state, 2);
}

static void check_position(struct arena *arena, size_t position, uint64_t *seed)
{
    uint64_t start = position_start(position);
    struct rs_range range;

    if (!pin(arena, position))
        return;
    if (!rs_address_map_find(arena->map, start, &range) || range.start != start ||
        range.owner != &owners[position % THREADS])
        atomic_fetch_add(&arena->failures, 1);
    if (!rs_address_map_find_inside(arena->map, start + next_random(seed) % 1024, &range) ||
        range.start != start || range.size_bytes != 1024)
        atomic_fetch_add(&arena->failures, 1);
    atomic_fetch_add(&arena->checks, 1);
    unpin(arena, position);
}

static void toggle_position(struct arena *arena, size_t position)
{
    struct rs_range range;
    unsigned in = 1;

    if (atomic_load(&arena->positions[position].state) == 0) {
        if (!rs_address_map_insert(arena->map, position_start(position), 1024,
                                   &owners[position % THREADS]))
            atomic_fetch_add(&arena->failures, 1);
        atomic_store(&arena->positions[position].state, 1);
    } else if (atomic_compare_exchange_strong(&arena->positions[position].state, &in, 0)) {
        if (!rs_address_map_remove(arena->map, position_start(position),
                                   &owners[position % THREADS]) ||
            rs_address_map_find(arena->map, position_start(position), &range))
            atomic_fetch_add(&arena->failures, 1);
    }
}

static void *churn(void *data)
{
    struct worker *worker = data;
    uint64_t seed = 99 + worker->number;

    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < PER_THREAD; i++) {
            size_t mine = next_random(&seed) % PER_THREAD * THREADS + worker->number;
            toggle_position(worker->arena, mine);
            check_position(worker->arena, next_random(&seed) % (THREADS * PER_THREAD), &seed);
        }
    }
    return NULL;
}

static bool count_visited(void *data, const struct rs_range *range)
{
    (void)range;
    ++*(size_t *)data;
    return true;
}

TEST(every_range_is_found_while_others_come_and_go)
{
    struct arena *arena = calloc(1, sizeof(*arena));
    struct worker workers[THREADS];
    size_t in = 0, visited = 0;

    arena->map = rs_address_map_create();
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.arena = arena, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, churn, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (size_t i = 0; i < THREADS * PER_THREAD; i++)
        in += atomic_load(&arena->positions[i].state) != 0;
    rs_address_map_each(arena->map, count_visited, &visited);
    assert_int_equal(atomic_load(&arena->failures), 0);
    assert_true(atomic_load(&arena->checks) > 1000);
    assert_int_equal(count_ranges(arena->map), in);
    assert_int_equal(visited, in);
    rs_address_map_destroy(arena->map);
    free(arena);
}

/* All threads make the same regions at once, and grow tables under readers. */
static void *fill(void *data)
{
    struct worker *worker = data;
    struct rs_range range;

    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t start = (i % 64 * GIB) + (i / 64 * THREADS + worker->number) * 512;
        if (!rs_address_map_insert(worker->arena->map, start, 512, worker) ||
            !rs_address_map_find(worker->arena->map, start, &range) || range.owner != worker ||
            !rs_address_map_find_inside(worker->arena->map, start + 100, &range))
            atomic_fetch_add(&worker->arena->failures, 1);
    }
    return NULL;
}

TEST(growth_under_readers_loses_nothing)
{
    struct arena *arena = calloc(1, sizeof(*arena));
    struct worker workers[THREADS];

    arena->map = rs_address_map_create();
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.arena = arena, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, fill, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    assert_int_equal(atomic_load(&arena->failures), 0);
    assert_int_equal(count_ranges(arena->map), THREADS * 20000);
    rs_address_map_destroy(arena->map);
    free(arena);
}

int unit_prepare(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    host_on_mapping = note_mapping;
    return 0;
}
