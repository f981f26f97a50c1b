/* SPDX-License-Identifier: Apache-2.0 */
/* A device's limit, as other threads find it while one resolves it. */
#include "unit.h"

#include "config/config.h"
#include "config/mode.h"
#include "context/limit.h"
#include "lines.h"
#include "traps.h"

#include <signal.h>
#include <stdatomic.h>

enum { DEVICE = 0 };

static unsigned looks, missed;

/* What another thread would find that looks now. */
static void look(int signal)
{
    (void)signal;
    looks++;
    missed += rs_limit_is_used(DEVICE) && atomic_load(&rs_limit_account(DEVICE)->limit_bytes) == 0;
}

TEST(who_finds_a_limit_resolved_finds_the_limit)
{
    const char *const settings[] = {"RMM_LIMIT=1GiB", NULL};
    struct sigaction action = {.sa_handler = look}, before;
    struct lines lines;

    assert_int_equal(
        rs_config_parse((char *const *)(uintptr_t)settings, lines_begin(&lines), &rs_config), 0);
    rs_limit_begin();
    assert_false(rs_limit_is_used(DEVICE));
    assert_int_equal(sigaction(SIGTRAP, &action, &before), 0);
    step(true);
    rs_limit_resolve(DEVICE);
    step(false);
    assert_int_equal(sigaction(SIGTRAP, &before, NULL), 0);
    assert_int_equal(atomic_load(&rs_limit_account(DEVICE)->limit_bytes), 1 << 30);
    assert_true(looks > 10);
    assert_int_equal(missed, 0);
    rs_config_free(&rs_config);
}
