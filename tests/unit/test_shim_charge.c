/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver serves itself is charged under the key that a free names. */
#include "unit.h"

#include "charge/charge.h"
#include "ledger/account.h"

enum { DEVICE = 0, KEY = 0x7000 };

static const enum rs_path paths[] = {RS_PATH_DRIVER, RS_PATH_MANAGED, RS_PATH_ARRAY, RS_PATH_VMM};
static const size_t sizes[] = {1000, 3 << 20};

static size_t charged_bytes(void)
{
    return atomic_load(&rs_limit_account(DEVICE)->charged_bytes);
}

static void begin(struct rs_charge *charge, enum rs_path path, size_t size_bytes)
{
    const struct rs_charge_owner owner = {.device = DEVICE};

    rs_account_lose(rs_limit_account(DEVICE)); /* that of the test before */
    rs_limit_begin();
    assert_true(rs_charge_begin(charge, &owner, path, size_bytes));
    assert_true(charged_bytes() > 0);
}

static enum rs_charge_keys keys_of(enum rs_path path)
{
    return path == RS_PATH_ARRAY ? RS_KEYS_ARRAYS
           : path == RS_PATH_VMM ? RS_KEYS_HANDLES
                                 : RS_KEYS_ADDRESSES;
}

TEST(a_free_by_the_key_gives_the_charge_back)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(paths); i++)
        for (size_t j = 0; j < RS_ARRAY_LENGTH(sizes); j++) {
            struct rs_charge charge;
            begin(&charge, paths[i], sizes[j]);
            rs_charge_end(&charge, CUDA_SUCCESS, KEY);
            assert_true(charged_bytes() > 0);
            assert_int_equal(rs_charge_free_end(rs_charge_free_begin(true, keys_of(paths[i]), KEY),
                                                CUDA_SUCCESS),
                             CUDA_SUCCESS);
            assert_int_equal(charged_bytes(), 0);
        }
}

/* No free could name it. */
TEST(what_the_driver_gives_no_key_for_is_not_charged)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(paths); i++)
        for (size_t j = 0; j < RS_ARRAY_LENGTH(sizes); j++) {
            struct rs_charge charge;
            begin(&charge, paths[i], sizes[j]);
            rs_charge_end(&charge, CUDA_SUCCESS, 0);
            assert_int_equal(charged_bytes(), 0);
        }
}
