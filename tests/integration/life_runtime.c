/* SPDX-License-Identifier: Apache-2.0 */
/* Programs whose life is not straight: forks, exits, resets.  Each scene prints what the CUDA
 * runtime answers; a test compares that with and without the library.
 *
 *   life_runtime SCENE [ARGUMENT] */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 100000, BLOCKS = 16 };

static char *blocks[BLOCKS];
static bool free_in_destructor;

#define SAY(call) printf("%s = %d\n", #call, (int)(call))

static void make_blocks(void)
{
    for (int i = 0; i < BLOCKS; i++) {
        int made = (int)cudaMalloc((void **)&blocks[i], BYTES + i);
        int filled = (int)cudaMemset(blocks[i], i, BYTES + i);
        if (made || filled)
            printf("block %d: %d %d\n", i, made, filled);
    }
}

static void check_blocks(void)
{
    static unsigned char host[BYTES + BLOCKS];

    for (int i = 0; i < BLOCKS; i++) {
        int copied = (int)cudaMemcpy(host, blocks[i], BYTES + i, cudaMemcpyDeviceToHost);
        for (int j = 0; !copied && j < BYTES + i; j++)
            if (host[j] != i)
                copied = -1;
        if (copied)
            printf("block %d: copy %d\n", i, copied);
    }
}

static void free_blocks(void)
{
    for (int i = 0; i < BLOCKS; i++) {
        int freed = (int)cudaFree(blocks[i]);
        if (freed)
            printf("block %d: free %d\n", i, freed);
    }
}

static void end_child(pid_t child)
{
    int status = 0;

    waitpid(child, &status, 0);
    if (WIFEXITED(status))
        printf("child exits with %d\n", WEXITSTATUS(status));
    else
        printf("child ends by signal %d\n", WTERMSIG(status));
}

/* The plain course of things; "live" leaves blocks behind. */
static int plain(const char *argument)
{
    make_blocks();
    check_blocks();
    if (!argument || strcmp(argument, "live"))
        free_blocks();
    SAY(cudaGetLastError());
    return 0;
}

/* Prints its answers to the calls at which bad settings show, one at a time. */
static int first_call(const char *argument)
{
    void *p = NULL;
    size_t free_bytes, total_bytes;

    printf("before\n");
    if (!strcmp(argument, "count")) {
        int count = 0;
        SAY(cudaGetDeviceCount(&count));
    } else if (!strcmp(argument, "malloc")) {
        SAY(cudaMalloc(&p, BYTES));
        SAY(cudaFree(p));
    } else if (!strcmp(argument, "free")) {
        SAY(cudaFree((void *)0x1000));
    } else if (!strcmp(argument, "info")) {
        SAY(cudaMemGetInfo(&free_bytes, &total_bytes));
    }
    printf("after\n");
    return 0;
}

static int fork_before(const char *argument)
{
    pid_t child = fork();

    if (child == 0) {
        printf("child\n");
        plain(argument);
        exit(3);
    }
    end_child(child);
    printf("parent\n");
    plain(argument);
    return 0;
}

static int fork_after(const char *argument)
{
    pid_t child;

    make_blocks();
    child = fork();
    if (child == 0) {
        void *p = NULL;
        size_t free_bytes, total_bytes;
        SAY(cudaMalloc(&p, BYTES));
        SAY(cudaFree(blocks[0]));
        SAY(cudaMemGetInfo(&free_bytes, &total_bytes));
        if (argument && !strcmp(argument, "exit"))
            exit(4);
        _exit(4);
    }
    end_child(child);
    check_blocks();
    free_blocks();
    make_blocks();
    check_blocks();
    free_blocks();
    return 0;
}

enum { WORK_LEAST = 2000 }; /* allocations of each thread */
static atomic_uint working; /* threads that have begun */
static atomic_bool has_forked;

static void *work_on(void *data)
{
    (void)data;
    working++;
    for (int i = 0; i < WORK_LEAST || !has_forked; i++) {
        void *p = NULL;
        cudaMalloc(&p, 1000 + (size_t)i % 5000);
        cudaFree(p);
    }
    return NULL;
}

/* Forks while other threads are inside of the library. */
static int fork_busy(const char *argument)
{
    pthread_t threads[4];

    (void)argument;
    cudaFree(NULL);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work_on, NULL);
    while (working < 4)
        sched_yield();
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            void *p = NULL;
            int result = (int)cudaMalloc(&p, BYTES);
            cudaFree(p);
            _exit(result);
        }
        end_child(child);
    }
    has_forked = true;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    SAY(cudaGetLastError());
    return 0;
}

/* As if another thread had been loading a library at the fork. */
static int fork_loading(const char *argument)
{
    struct r_debug *loader = dlsym(RTLD_DEFAULT, "_r_debug"); /* by name it would be a copy */
    pid_t child;

    (void)argument;
    cudaFree(NULL);
    child = fork();
    if (child == 0) {
        void *p = NULL;
        loader->r_state = RT_ADD;
        _exit((int)cudaMalloc(&p, BYTES));
    }
    end_child(child);
    SAY(cudaGetLastError());
    return 0;
}

static const char *own_path;

static int exec(const char *argument)
{
    (void)argument;
    make_blocks();
    printf("exec\n");
    execl(own_path, own_path, "plain", (char *)NULL);
    return 1;
}

static int exec_child(const char *argument)
{
    pid_t child;

    (void)argument;
    make_blocks();
    child = fork();
    if (child == 0) {
        execl(own_path, own_path, "plain", (char *)NULL);
        _exit(99);
    }
    end_child(child);
    free_blocks();
    return 0;
}

/* A child that no handler of fork() was told of. */
static int clone_after(const char *argument)
{
    pid_t child;

    (void)argument;
    make_blocks();
    child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        void *p = NULL;
        int made = (int)cudaMalloc(&p, BYTES), freed = (int)cudaFree(blocks[0]);
        _exit(made * 16 + freed);
    }
    end_child(child);
    check_blocks();
    free_blocks();
    return 0;
}

static int spawn(const char *argument)
{
    char *words[] = {(char *)(uintptr_t)own_path, (char *)(uintptr_t) "plain", NULL};
    pid_t child;
    int failed;

    (void)argument;
    make_blocks();
    failed = posix_spawn(&child, own_path, NULL, NULL, words, environ);
    if (!failed)
        end_child(child); /* which prints too: only then is it our turn */
    printf("posix_spawn = %d\n", failed);
    check_blocks();
    free_blocks();
    return 0;
}

static void *exec_here(void *data)
{
    make_blocks();
    printf("exec in a thread\n");
    execl(own_path, own_path, "descriptors", (char *)NULL);
    return data;
}

static int exec_in_thread(const char *argument)
{
    pthread_t thread;

    (void)argument;
    make_blocks();
    pthread_create(&thread, NULL, exec_here, NULL);
    pthread_join(thread, NULL);
    return 1;
}

/* What a new program finds open, and then the plain course of things. */
static int descriptors(const char *argument)
{
    int open_descriptors = 0;

    for (int fd = STDERR_FILENO + 1; fd < 1024; fd++)
        open_descriptors += fcntl(fd, F_GETFD) >= 0;
    printf("%d descriptors are open\n", open_descriptors);
    return plain(argument);
}

/* A daemon closes all that it does not know; what it opens next is its own. */
static int close_all(const char *argument)
{
    enum { NUMBERS = 1024 };
    char text[64] = "";
    int fd, last = -1;

    (void)argument;
    make_blocks();
    free_blocks();
    for (fd = STDERR_FILENO + 1; fd < NUMBERS; fd++)
        if (fcntl(fd, F_GETFD) >= 0 && close(fd) == 0)
            last = fd;
    fd = memfd_create("mine", 0);
    if (last >= 0 && last != fd)
        dup2(fd, last); /* every number that was in use */
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < BLOCKS; i++)
            if (cudaMalloc((void **)&blocks[i], BYTES + i) != cudaSuccess)
                printf("block %d\n", i);
        free_blocks();
    }
    printf("%zd bytes in a file of its own\n", pread(fd, text, sizeof(text), 0));
    return 0;
}

static void *fill_and_exit(void *data)
{
    enum { MANY = 100, MANY_BYTES = 64 << 10 };
    void *many[MANY];
    int wrong = 0;

    for (int i = 0; i < MANY; i++)
        wrong += cudaMalloc(&many[i], MANY_BYTES) != cudaSuccess;
    for (int i = 0; i < MANY; i++)
        wrong += cudaFree(many[i]) != cudaSuccess;
    cudaDeviceSynchronize();
    *(int *)data += wrong;
    return NULL;
}

/* What threads freed and may have kept is there for the next when they are gone. */
static int threads_that_kept(const char *argument)
{
    int wrong = 0;

    (void)argument;
    for (int i = 0; i < 40; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, fill_and_exit, &wrong);
        pthread_join(thread, NULL);
    }
    printf("%d calls failed\n", wrong);
    return 0;
}

static int leave(const char *argument)
{
    make_blocks();
    if (argument && !strcmp(argument, "_exit"))
        _exit(5);
    if (argument && !strcmp(argument, "quick_exit"))
        quick_exit(6);
    if (argument && !strcmp(argument, "abort")) {
        abort();
    }
    exit(7);
}

static void *leave_process(void *data)
{
    (void)data;
    make_blocks();
    free_blocks();
    make_blocks();
    exit(8);
}

static int leave_in_thread(const char *argument)
{
    pthread_t thread;

    (void)argument;
    pthread_create(&thread, NULL, leave_process, NULL);
    pthread_join(thread, NULL);
    return 1;
}

static void free_at_exit(void)
{
    int freed = (int)cudaFree(blocks[0]);

    /* The runtime may be gone by now (4), or not yet (0). */
    printf("free at exit: %s\n", freed == 0 || freed == 4 ? "0 or 4" : "another result");
    blocks[0] = NULL;
}

__attribute__((destructor)) static void free_in_the_end(void)
{
    if (free_in_destructor)
        for (int i = 1; i < BLOCKS; i++)
            cudaFree(blocks[i]);
}

static int free_late(const char *argument)
{
    free_in_destructor = true;
    if (argument && !strcmp(argument, "early_handler"))
        atexit(free_at_exit);
    make_blocks();
    if (!argument || strcmp(argument, "early_handler"))
        atexit(free_at_exit);
    return 0;
}

static int reset(const char *argument)
{
    char *old;

    (void)argument;
    for (int round = 0; round < 5; round++) {
        make_blocks();
        check_blocks();
        old = blocks[3];
        SAY(cudaDeviceReset());
        SAY(cudaFree(old));
        SAY(cudaGetLastError());
    }
    make_blocks();
    check_blocks();
    free_blocks();
    SAY(cudaDeviceReset());
    SAY(cudaGetLastError());
    return 0;
}

static void *make_in_thread(void *data)
{
    (void)data;
    make_blocks();
    return NULL;
}

static void *free_in_thread(void *data)
{
    (void)data;
    check_blocks();
    free_blocks();
    SAY(cudaGetLastError());
    return NULL;
}

static int threads(const char *argument)
{
    (void)argument;
    for (int round = 0; round < 5; round++) {
        pthread_t thread;
        pthread_create(&thread, NULL, make_in_thread, NULL);
        pthread_join(thread, NULL);
        pthread_create(&thread, NULL, free_in_thread, NULL);
        pthread_join(thread, NULL);
    }
    /* Threads whose first CUDA call is a free. */
    make_blocks();
    for (int i = 0; i < 1; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, free_in_thread, NULL);
        pthread_join(thread, NULL);
    }
    SAY(cudaGetLastError());
    return 0;
}

static const struct {
    const char *name;
    int (*run)(const char *argument);
} scenes[] = {
    {"plain", plain},
    {"first_call", first_call},
    {"fork_before", fork_before},
    {"fork_after", fork_after},
    {"fork_busy", fork_busy},
    {"fork_loading", fork_loading},
    {"exec", exec},
    {"exec_child", exec_child},
    {"leave", leave},
    {"leave_in_thread", leave_in_thread},
    {"free_late", free_late},
    {"reset", reset},
    {"threads", threads},
    {"clone_after", clone_after},
    {"spawn", spawn},
    {"exec_in_thread", exec_in_thread},
    {"descriptors", descriptors},
    {"close_all", close_all},
    {"threads_that_kept", threads_that_kept},
};

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    own_path = argv[0];
    for (size_t i = 0; argc > 1 && i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if (!strcmp(argv[1], scenes[i].name))
            return scenes[i].run(argv[2]);
    fprintf(stderr, "usage: life_runtime SCENE [ARGUMENT]\n");
    return 2;
}
