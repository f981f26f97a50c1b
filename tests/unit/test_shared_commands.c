/* SPDX-License-Identifier: Apache-2.0 */
/* What a process writes into another's file of commands; the other is this one. */
#include "unit.h"

#include "folder.h"
#include "shared/commands.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

/* True when the bit was set in a file that looks like this process's. */
static bool is_raised_in(int fd)
{
    struct rs_commands head = {.process = (int32_t)getpid()};
    struct stat status;

    assert_true(fd >= 0);
    snprintf(head.layout, sizeof(head.layout), "%s", RS_COMMANDS_LAYOUT);
    assert_int_equal(ftruncate(fd, RS_COMMANDS_BYTES), 0);
    assert_int_equal(pwrite(fd, &head, sizeof(head), 0), sizeof(head));
    assert_int_equal(fstat(fd, &status), 0);
    rs_commands_raise(getpid(), fd, (uint64_t)status.st_ino);
    assert_int_equal(pread(fd, &head, sizeof(head), 0), sizeof(head));
    assert_int_equal(close(fd), 0);
    return head.attention == RS_ATTENTION_JOB;
}

/* Writing to a mapping of a file that has shrunk would end this process by SIGBUS. */
TEST(only_a_file_that_cannot_shrink_is_written_to)
{
    int sealed = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char path[] = "ordinary-XXXXXX";
    int ordinary = mkostemp(path, O_CLOEXEC);

    assert_int_equal(unlink(path), 0);
    assert_false(is_raised_in(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
    assert_false(is_raised_in(ordinary));
    assert_int_equal(ftruncate(sealed, RS_COMMANDS_BYTES), 0);
    assert_int_equal(fcntl(sealed, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_true(is_raised_in(sealed));
}
