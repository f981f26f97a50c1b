/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/hash_table.h"
#include "host_memory.h"

#include <stdlib.h>

enum { KEYS = 5000 };

/* Hash tables, with keys spread like handles (pointers), and keys that collide. */
static uint64_t key_of(size_t i)
{
    return i % 3 ? (uint64_t)(i + 1) << 21 : i + 1;
}

static void *value_of(size_t i)
{
    static char values[KEYS + 1];

    return &values[i];
}

TEST(finds_what_was_put)
{
    struct rs_hash_table table = {NULL, 0, 0};

    assert_null(rs_hash_get(&table, 1));
    assert_null(rs_hash_take(&table, 1));
    for (size_t i = 0; i < KEYS; i++)
        assert_true(rs_hash_put(&table, key_of(i), value_of(i)));
    assert_int_equal(table.count, KEYS);
    assert_true(rs_hash_put(&table, key_of(7), value_of(KEYS)));
    assert_int_equal(table.count, KEYS);
    assert_ptr_equal(rs_hash_get(&table, key_of(7)), value_of(KEYS));
    assert_null(rs_hash_get(&table, 0));
    rs_hash_clear(&table);
}

/* Every other key goes; no gap hides what is left. */
TEST(taking_leaves_the_others)
{
    struct rs_hash_table table = {NULL, 0, 0};
    size_t seen = 0;

    for (size_t i = 0; i < KEYS; i++)
        assert_true(rs_hash_put(&table, key_of(i), value_of(i)));
    for (size_t i = 0; i < KEYS; i += 2) {
        assert_ptr_equal(rs_hash_take(&table, key_of(i)), value_of(i));
        assert_null(rs_hash_take(&table, key_of(i)));
    }
    for (size_t i = 0; i < KEYS; i++)
        assert_ptr_equal(rs_hash_get(&table, key_of(i)), i % 2 ? value_of(i) : NULL);
    for (size_t slot = 0; slot < table.slot_count; slot++)
        seen += rs_hash_at(&table, slot) != NULL;
    assert_int_equal(seen, KEYS / 2);
    assert_int_equal(table.count, KEYS / 2);
    rs_hash_clear(&table);
}

TEST(reserved_keys_need_no_memory)
{
    struct rs_hash_table table = {NULL, 0, 0};

    host_left = 0;
    assert_false(rs_hash_put(&table, 1, value_of(0)));
    host_left = -1;
    assert_true(rs_hash_reserve(&table, KEYS));
    host_left = 0;
    for (size_t i = 0; i < KEYS; i++)
        assert_true(rs_hash_put(&table, key_of(i), value_of(i)));
    assert_false(rs_hash_reserve(&table, 10 * KEYS));
    for (size_t i = 0; i < KEYS; i++)
        assert_ptr_equal(rs_hash_get(&table, key_of(i)), value_of(i));
    host_left = -1;
    rs_hash_clear(&table);
}

/* Whoever has looked that there is room may enter its key after others, who have looked too. */
TEST(keys_are_entered_without_memory_until_one_slot_is_free)
{
    struct rs_hash_table table = {NULL, 0, 0};
    size_t most;

    assert_true(rs_hash_reserve(&table, 1));
    most = table.slot_count - 1;
    host_left = 0;
    for (size_t i = 0; i < most; i++)
        assert_true(rs_hash_put(&table, key_of(i), value_of(i)));
    assert_false(rs_hash_put(&table, key_of(most), value_of(most)));
    assert_true(
        rs_hash_put(&table, key_of(0), value_of(KEYS))); /* a key that is there needs none */
    assert_ptr_equal(rs_hash_get(&table, key_of(0)), value_of(KEYS));
    for (size_t i = 1; i < most; i++)
        assert_ptr_equal(rs_hash_take(&table, key_of(i)), value_of(i));
    host_left = -1;
    rs_hash_clear(&table);
}
