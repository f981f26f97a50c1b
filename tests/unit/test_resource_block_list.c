/* SPDX-License-Identifier: Apache-2.0 */
/* A list of blocks: whichever block is removed, the others stay in order, and so do later ones. */
#include "unit.h"

#include "resource/block.h"

enum { BLOCKS = 4, UNIT_BYTES = 512 };

TEST(a_block_is_removed_from_any_place)
{
    for (size_t removed = 0; removed < BLOCKS - 1; removed++) {
        struct rs_block_record records[BLOCKS] = {0};
        struct rs_block_list list = {NULL, NULL, 0, 0};

        for (size_t i = 0; i < BLOCKS; i++)
            records[i].upstream_bytes = UNIT_BYTES << i;
        for (size_t i = 0; i < BLOCKS - 1; i++)
            rs_block_list_push(&list, &records[i]);
        assert_true(rs_block_list_remove(&list, &records[removed]));
        assert_false(rs_block_list_remove(&list, &records[removed]));
        rs_block_list_push(&list, &records[BLOCKS - 1]);
        assert_int_equal(list.count, BLOCKS - 1);
        for (size_t i = 0; i < BLOCKS; i++)
            if (i != removed)
                assert_ptr_equal(rs_block_list_pop(&list), &records[i]);
        assert_null(list.first);
        assert_null(list.last);
        assert_int_equal(list.bytes, 0);
        assert_int_equal(list.count, 0);
    }
}

TEST(a_block_that_was_alone_leaves_an_empty_list)
{
    struct rs_block_record record = {.upstream_bytes = UNIT_BYTES};
    struct rs_block_list list = {NULL, NULL, 0, 0};

    rs_block_list_push(&list, &record);
    assert_true(rs_block_list_remove(&list, &record));
    assert_null(list.first);
    assert_null(list.last);
    rs_block_list_push(&list, &record);
    assert_ptr_equal(rs_block_list_pop(&list), &record);
}
