/* SPDX-License-Identifier: Apache-2.0 */
/* The leak report at exit, beside threads that still end contexts. */
#include "stack.h"

#include "config/mode.h"
#include "context/stack.h"
#include "context/table.h"
#include "folder.h"
#include "report/holders.h"
#include "report/report.h"
#include "resource/adaptor/tracking.h"

#include <string.h>

#define PLENTY ((size_t)1 << 50)

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

static bool ends_meanwhile;

/* Has a context with one block of so many bytes end. */
static void end_context(size_t size_bytes)
{
    struct stack stack = make_stack(&rs_mr_descriptor_tracking, PLENTY, OPTIONS("stacks=0"));
    struct rs_stack of = {.kind = RS_KIND_DEVICE, .environment = fake_environment};
    struct rs_allocation block = take(&stack, size_bytes);

    rs_mutex_lock(&rs_contexts_lock);
    rs_leaks_note_gone(&of, stack.mr);
    rs_mutex_unlock(&rs_contexts_lock);
    give(&stack, &block);
    end_stack(&stack);
}

size_t __real_rs_holders_sort(struct rs_holders *holders, bool merges);
size_t __wrap_rs_holders_sort(struct rs_holders *holders, bool merges);

/* As another thread may do when the report has taken what is live, and gave the lock back. */
size_t __wrap_rs_holders_sort(struct rs_holders *holders, bool merges)
{
    if (ends_meanwhile)
        end_context(1 << 20);
    return __real_rs_holders_sort(holders, merges);
}

/* Writes the report of a process that serves. */
static void report(char text[4096])
{
    static const unsigned char page[] = {1};
    FILE *file;

    rs_mode_page = page;
    atomic_store(&rs_mode_current, RS_MODE_SERVE);
    rs_config.tracking = RS_STATISTICS_TEXT;
    rs_config.tracking_path = "leaks";
    rs_report_arm();
    rs_report_at_exit();
    file = fopen("leaks", "re");
    text[file ? fread(text, 1, 4095, file) : 0] = '\0';
    if (file)
        (void)fclose(file);
}

/* Another thread that holds the lock may be changing what has ended. */
TEST(without_the_lock_no_report_is_written)
{
    char text[4096];

    end_context(1000);
    rs_mutex_lock(&rs_contexts_lock);
    report(text);
    rs_mutex_unlock(&rs_contexts_lock);
    assert_string_equal(text, "");
}

TEST(a_context_that_ends_during_the_report_changes_nothing)
{
    char text[4096];

    ends_meanwhile = true;
    report(text);
    assert_non_null(strstr(text, "leaked 1000 B in 1 block from 1 call site\n"));
}
