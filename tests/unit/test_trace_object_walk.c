/* SPDX-License-Identifier: Apache-2.0 */
/* Objects where the C library is glibc 2.34, which has no _dl_find_object. */
#include "unit.h"

#include "driver/driver.h"
#include "folder.h"
#include "trace/object.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, FAILURE_SECONDS = 60 };

typedef int walk_function(struct dl_phdr_info *info, size_t size, void *data);

rs_dlsym_function *__wrap_rs_real_dlsym(void);
int __wrap_dl_iterate_phdr(walk_function *function, void *data);
int __real_dl_iterate_phdr(walk_function *function, void *data);
__attribute__((visibility("default"))) void in_constructor(void);

static void *find_nothing(void *handle, const char *symbol)
{
    (void)handle;
    assert_string_equal(symbol, "_dl_find_object");
    return NULL;
}

rs_dlsym_function *__wrap_rs_real_dlsym(void)
{
    return find_nothing;
}

static unsigned walks;

int __wrap_dl_iterate_phdr(walk_function *function, void *data)
{
    walks++;
    return __real_dl_iterate_phdr(function, data);
}

static const void *in_libc(void)
{
    return dlsym(RTLD_DEFAULT, "getpid");
}

TEST(the_program_and_a_library_are_found)
{
    unsigned program = rs_object_of((const void *)in_libc), libc = rs_object_of(in_libc());
    char on_stack = 0;

    assert_string_equal(rs_object_name(program), program_invocation_short_name);
    assert_memory_equal(rs_object_name(libc), "libc.so", 7);
    assert_int_equal(rs_object_of((const char *)in_libc() + 1), libc);
    assert_int_equal(rs_object_of(&on_stack), 0);
    assert_int_equal(rs_object_identity(&on_stack), 0);
    assert_int_not_equal(rs_object_identity(in_libc()), 0);
    assert_int_not_equal(rs_object_identity(in_libc()), rs_object_identity((const void *)in_libc));
}

/* ---- a module that comes and goes ---- */

static void *load(const char *path)
{
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!module)
        fail_msg("%s", dlerror());
    return module;
}

static const void *address_in(void *module)
{
    const void *address = dlsym(module, "constructor_address");

    assert_non_null(address);
    return address;
}

static unsigned number_of(void *module)
{
    return rs_object_of(address_in(module));
}

static bool asks_in_constructor;
static int joined = -1;

static void *ask(void *data)
{
    *(unsigned *)data = rs_object_of((const void *)load);
    return NULL;
}

/* Waits for a thread, so long that only one that waits for the constructor takes longer. */
void in_constructor(void)
{
    static unsigned number; /* the thread may live longer than this call */
    struct timespec until;
    pthread_t thread;

    if (!asks_in_constructor)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FAILURE_SECONDS;
    if (pthread_create(&thread, NULL, ask, &number) == 0)
        joined = pthread_timedjoin_np(thread, NULL, &until);
}

TEST(a_thread_that_a_constructor_waits_for_gets_its_answer)
{
    void *module;

    asks_in_constructor = true;
    module = load(getenv("CONSTRUCTOR"));
    asks_in_constructor = false;
    assert_int_equal(joined, 0);
    dlclose(module);
}

/* ---- more objects than are numbered ---- */

/* The module under another name, which is another object. */
static void *load_as(unsigned name)
{
    char path[PATH_BYTES];
    void *module;

    snprintf(path, sizeof(path), "%s/%u.so", test_folder, name);
    assert_int_equal(symlink(getenv("CONSTRUCTOR"), path), 0);
    module = load(path);
    unlink(path);
    return module;
}

TEST_WITH(enter_test_folder, leave_test_folder, an_object_without_a_number_costs_one_walk)
{
    unsigned number = 1, last = 0, i;
    const void *last_address = NULL;
    void *module;

    for (i = 0; number && i <= RS_OBJECTS_MAX; i++) {
        module = load_as(i);
        number = number_of(module);
        last = number ? number : last;
        last_address = number ? address_in(module) : last_address;
        dlclose(module);
    }
    assert_int_equal(number, 0);
    assert_int_equal(last, RS_OBJECTS_MAX);

    module = load_as(i);
    walks = 0;
    assert_int_equal(number_of(module), 0);
    assert_int_equal(walks, 1);
    rs_object_review();                     /* which a report makes */
    if (address_in(module) == last_address) /* not so under qemu */
        assert_null(rs_object_name(last));
    dlclose(module);
}
