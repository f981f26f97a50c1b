/* SPDX-License-Identifier: Apache-2.0 */
/* Other processes' pages in a report: of processes that lie, and of time that is over. */
#include "unit.h"

#include "base/check.h"
#include "report/neighbours.h"
#include "report/publish.h"
#include "shared/published.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGE_FD = 600,
    ROUNDS = 400,
    DIRECTORY = 1 << 16,
    HELD = 1 << 20, /* where the field lies */
    HELD_BYTES = 123456,
    STACKS = 3,
    COUNTERS = 40,
    CHARGED = 17,
    OF_STACK = 1,
};

static unsigned char uuid[RS_PUBLISHED_UUID_BYTES];

/* A process that has a page open, and does nothing; the page is ours, too. */
static pid_t neighbour;
static char *page;
static struct rs_neighbours found;

static struct rs_publication *head(void)
{
    return (void *)page;
}

static struct rs_published_directory *directory(void)
{
    return (void *)(page + DIRECTORY);
}

static struct rs_published_stack *stacks(void)
{
    return (void *)(directory() + 1);
}

static struct rs_published_counter *counters(void)
{
    return (void *)(stacks() + STACKS);
}

static uint64_t *held(void)
{
    return (void *)(page + HELD);
}

static void fill(void)
{
    memset(page, 0, HELD + 4096);
    snprintf(head()->layout, sizeof(head()->layout), "%s", RS_PUBLICATION_LAYOUT);
    head()->process = (int32_t)neighbour;
    snprintf(head()->program, sizeof(head()->program), "lodger");
    atomic_store(&head()->directory, DIRECTORY);
    directory()->stack_count = STACKS;
    directory()->counter_count = COUNTERS;
    for (int i = 0; i < STACKS; i++)
        stacks()[i].kind = i == OF_STACK ? RS_KIND_DEVICE : RS_KIND_MANAGED;
    memcpy(stacks()[OF_STACK].device_uuid, uuid, sizeof(uuid));
    for (int i = 0; i < COUNTERS; i++) {
        struct rs_published_counter *counter = &counters()[i];
        snprintf(counter->resource, sizeof(counter->resource), "account");
        snprintf(counter->name, sizeof(counter->name), "%s", i == CHARGED ? "charged" : "limit");
        counter->stack = OF_STACK;
        counter->term_count = 1;
        counter->terms[0] = (struct rs_published_term){HELD, 1, 0, 1};
    }
    *held() = HELD_BYTES;
}

/* The child has the page from its beginning on. */
static pid_t begin_process(void)
{
    pid_t child = fork();

    if (child == 0) {
        for (;;)
            pause();
    }
    return child;
}

static void begin_with(const char *name, int seals)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, RS_PUBLISHED_BYTES), 0);
    page = mmap(NULL, RS_PUBLISHED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    assert_int_equal(dup2(fd, PAGE_FD), PAGE_FD);
    neighbour = begin_process();
    close(PAGE_FD);
    close(fd);
    assert_true(neighbour > 0);
    fill();
}

static int begin(void **state)
{
    (void)state;
    snprintf((char *)uuid, sizeof(uuid), "test %d", (int)getpid());
    begin_with("rmmshim", F_SEAL_SHRINK | F_SEAL_GROW);
    return 0;
}

static int end(void **state)
{
    (void)state;
    kill(neighbour, SIGKILL);
    assert_int_equal(waitpid(neighbour, NULL, 0), neighbour);
    munmap(page, RS_PUBLISHED_BYTES);
    return 0;
}

FIXTURE(begin, end);

/* ---- time: it stands still, or is over at once ---- */

static bool is_time_over;

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    static time_t seconds = 1000;

    (void)clock;
    seconds += is_time_over;
    *time = (struct timespec){seconds, 0};
    return 0;
}

/* How many are found: there is none but the one. */
static size_t find(void)
{
    rs_neighbours_find(&found, uuid);
    assert_int_equal(found.more_processes, 0);
    assert_in_range(found.count, 0, 1);
    if (found.count) {
        assert_int_equal(found.most[0].process, neighbour);
        assert_true(found.most[0].held_bytes > 0);
        assert_true(memchr(found.most[0].program, 0, sizeof(found.most[0].program)));
    }
    return found.count;
}

TEST(a_sound_page)
{
    assert_int_equal(find(), 1);
    assert_int_equal(found.most[0].held_bytes, HELD_BYTES);
    assert_string_equal(found.most[0].program, "lodger");
    assert_false(found.is_cut);
}

TEST(time_is_over)
{
    is_time_over = true;
    assert_int_equal(find(), 0);
    assert_true(found.is_cut);
    is_time_over = false;
}

TEST(another_device)
{
    stacks()[OF_STACK].device_uuid[0]++;
    assert_int_equal(find(), 0);
}

TEST(memory_of_another_kind)
{
    stacks()[OF_STACK].kind = RS_KIND_MANAGED;
    assert_int_equal(find(), 0);
}

TEST(nothing_is_held)
{
    *held() = 0;
    assert_int_equal(find(), 0);
    *held() = UINT64_MAX; /* a sum that another thread's half-done update made negative */
    assert_int_equal(find(), 0);
}

/* As a forked child and `rmmshim run` have it. */
TEST(another_process_s_page)
{
    head()->process++;
    assert_int_equal(find(), 0);
}

TEST(another_layout)
{
    head()->layout[strlen(head()->layout) - 1]++;
    assert_int_equal(find(), 0);
}

TEST(names_are_plain)
{
    memset(head()->program, '\033', sizeof(head()->program));
    assert_int_equal(find(), 1);
    assert_int_equal(strspn(found.most[0].program, "?"), sizeof(head()->program) - 1);
}

TEST(a_directory_that_is_elsewhere)
{
    static const uint64_t places[] = {
        0,          8,          RS_PUBLISHED_BYTES - 16, RS_PUBLISHED_BYTES,
        1ull << 32, 1ull << 63, UINT64_MAX - 15,         UINT64_MAX};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(places); i++) {
        atomic_store(&head()->directory, places[i]);
        assert_int_equal(find(), 0);
    }
}

TEST(more_stacks_and_counters_than_fit)
{
    directory()->counter_count = UINT32_MAX;
    assert_int_equal(find(), 0);
    fill();
    directory()->stack_count = RS_PUBLISHED_STACKS_MAX + 1;
    assert_int_equal(find(), 0);
}

TEST(fields_that_lie_elsewhere)
{
    struct rs_published_term *term = &counters()[CHARGED].terms[0];

    term->offset = RS_PUBLISHED_BYTES;
    assert_int_equal(find(), 0);
    *term = (struct rs_published_term){HELD, 1u << 20, 8, 1}; /* nobody comes to their end */
    assert_int_equal(find(), 0);
    *term = (struct rs_published_term){HELD, 2, 0, 1};
    assert_int_equal(find(), 1);
    assert_int_equal(found.most[0].held_bytes, 2 * HELD_BYTES);
}

TEST_WITH(NULL, end, a_file_that_can_shrink)
{
    begin_with("rmmshim", F_SEAL_GROW);
    assert_int_equal(find(), 0);
}

TEST_WITH(NULL, end, a_file_of_another_name)
{
    begin_with("rmmshim-commands", F_SEAL_SHRINK);
    assert_int_equal(find(), 0);
}

/* ---- at random ---- */

static uint64_t random_number(void)
{
    static uint64_t state = 88172645463325252u;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void spoil(char *bytes, size_t length)
{
    uint64_t number = random_number() >> random_number() % 64;
    size_t width = (size_t)1 << random_number() % 4;

    memcpy(bytes + random_number() % (length / width) * width, &number, width);
}

TEST(random_pages)
{
    size_t listed = 0, bytes = (size_t)((char *)&counters()[COUNTERS] - (char *)directory());

    for (int round = 0; round < ROUNDS; round++) {
        fill();
        for (uint64_t i = random_number() % 64; i > 0; i--)
            spoil((char *)directory(), bytes);
        if (random_number() % 8 == 0)
            spoil((char *)directory(), sizeof(struct rs_published_directory));
        if (random_number() % 8 == 0)
            spoil(page + sizeof(head()->layout), offsetof(struct rs_publication, refusal));
        listed += find();
    }
    assert_in_range(listed, ROUNDS / 8, ROUNDS); /* not all of them are refused at once */
}
