/* SPDX-License-Identifier: Apache-2.0 */
/* A preloaded library that makes the calls of the C library fail that librmmshim.so makes, or the
 * command, and no others: it puts its own functions into the table of addresses of one of them.
 *
 *   FAILING=<function>:<n>:once      the n-th call of that function fails
 *   FAILING=<function>:<n>:on        the n-th and all later ones fail
 *   FAILING_COMMAND=1                of the command, and not of the programs that it starts
 *   FAILING_COUNTS=<path>            at its end each process adds to that file how often each of
 *                                    these functions was called, and each function of the driver,
 *                                    and how many calls failed
 *
 * LD_PRELOAD names it after librmmshim.so, so that it begins first and ends last. */
#include "failing.h"

#include "../hostcuda/hostcuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#pragma weak hostcuda_all_calls
#pragma weak hostcuda_fault_hits
#pragma weak hostcuda_fault_pause

/* Row: name, what a failed call returns, its errno (0: none). */
#define FUNCTIONS(ROW)                                                                             \
    ROW(malloc, 0, ENOMEM)                                                                         \
    ROW(calloc, 0, ENOMEM)                                                                         \
    ROW(realloc, 0, ENOMEM)                                                                        \
    ROW(aligned_alloc, 0, ENOMEM)                                                                  \
    ROW(strdup, 0, ENOMEM)                                                                         \
    ROW(strndup, 0, ENOMEM)                                                                        \
    ROW(mmap, -1, ENOMEM)                                                                          \
    ROW(mprotect, -1, ENOMEM)                                                                      \
    ROW(madvise, -1, EINVAL)                                                                       \
    ROW(open, -1, EMFILE)                                                                          \
    ROW(write, -1, ENOSPC)                                                                         \
    ROW(pwrite, -1, ENOSPC)                                                                        \
    ROW(pread, -1, EIO)                                                                            \
    ROW(lseek, -1, ESPIPE)                                                                         \
    ROW(ftruncate, -1, EFBIG)                                                                      \
    ROW(fallocate, -1, ENOSPC)                                                                     \
    ROW(posix_fallocate, ENOSPC, 0)                                                                \
    ROW(fstat, -1, EOVERFLOW)                                                                      \
    ROW(lstat, -1, EACCES)                                                                         \
    ROW(stat, -1, EACCES)                                                                          \
    ROW(fstatfs, -1, ENOSYS)                                                                       \
    ROW(fchmod, -1, EPERM)                                                                         \
    ROW(flock, -1, ENOLCK)                                                                         \
    ROW(fcntl, -1, ENOLCK)                                                                         \
    ROW(unlink, -1, EACCES)                                                                        \
    ROW(readlink, -1, EACCES)                                                                      \
    ROW(getcwd, 0, EACCES)                                                                         \
    ROW(gethostname, -1, ENAMETOOLONG)                                                             \
    ROW(memfd_create, -1, EMFILE)                                                                  \
    ROW(eventfd, -1, EMFILE)                                                                       \
    ROW(socket, -1, EMFILE)                                                                        \
    ROW(connect, -1, ECONNREFUSED)                                                                 \
    ROW(setsockopt, -1, ENOBUFS)                                                                   \
    ROW(getsockopt, -1, ENOBUFS)                                                                   \
    ROW(sendmsg, -1, ENOBUFS)                                                                      \
    ROW(recvmsg, -1, ECONNRESET)                                                                   \
    ROW(poll, -1, ENOMEM)                                                                          \
    ROW(process_vm_readv, -1, EPERM)                                                               \
    ROW(kill, -1, EPERM)                                                                           \
    ROW(prctl, -1, EINVAL)                                                                         \
    ROW(getrandom, -1, ENOSYS)                                                                     \
    ROW(syscall, -1, ENOSYS)                                                                       \
    ROW(localtime_r, 0, EOVERFLOW)                                                                 \
    ROW(sigaltstack, -1, ENOMEM)                                                                   \
    ROW(dlopen, 0, 0)                                                                              \
    ROW(dladdr, 0, 0)                                                                              \
    ROW(dladdr1, 0, 0)                                                                             \
    ROW(pthread_create, EAGAIN, 0)                                                                 \
    ROW(pthread_key_create, EAGAIN, 0)                                                             \
    ROW(pthread_getattr_np, ENOMEM, 0)

/* These fail in the command only. */
#define COMMAND_FUNCTIONS(ROW)                                                                     \
    ROW(vasprintf, -1, ENOMEM)                                                                     \
    ROW(asprintf, -1, ENOMEM)                                                                      \
    ROW(open_memstream, 0, ENOMEM)                                                                 \
    ROW(fopen, 0, EMFILE)                                                                          \
    ROW(fdopen, 0, ENOMEM)                                                                         \
    ROW(fclose, EOF, ENOSPC)                                                                       \
    ROW(fgets, 0, EIO)                                                                             \
    ROW(fread, 0, EIO)                                                                             \
    ROW(__getdelim, -1, ENOMEM)                                                                    \
    ROW(read, -1, EIO)                                                                             \
    ROW(opendir, 0, EMFILE)                                                                        \
    ROW(readdir, 0, EIO)                                                                           \
    ROW(scandir, -1, ENOMEM)                                                                       \
    ROW(glob, GLOB_NOSPACE, 0)                                                                     \
    ROW(realpath, 0, EACCES)                                                                       \
    ROW(access, -1, EACCES)                                                                        \
    ROW(fstatat, -1, EACCES)                                                                       \
    ROW(readlinkat, -1, EACCES)                                                                    \
    ROW(getxattr, -1, EACCES)                                                                      \
    ROW(rename, -1, EACCES)                                                                        \
    ROW(mkostemp, -1, EACCES)                                                                      \
    ROW(setenv, -1, ENOMEM)                                                                        \
    ROW(getpwuid, 0, EIO)                                                                          \
    ROW(getrlimit, -1, EPERM)                                                                      \
    ROW(setrlimit, -1, EPERM)                                                                      \
    ROW(prlimit, -1, EPERM)                                                                        \
    ROW(pipe, -1, EMFILE)                                                                          \
    ROW(pipe2, -1, EMFILE)                                                                         \
    ROW(dup2, -1, EMFILE)                                                                          \
    ROW(fork, -1, EAGAIN)                                                                          \
    ROW(execlp, -1, EACCES)                                                                        \
    ROW(execvp, -1, EACCES)                                                                        \
    ROW(execvpe, -1, EACCES)                                                                       \
    ROW(signalfd, -1, EMFILE)                                                                      \
    ROW(epoll_create1, -1, EMFILE)                                                                 \
    ROW(epoll_ctl, -1, ENOSPC)                                                                     \
    ROW(sigqueue, -1, EAGAIN)                                                                      \
    ROW(dlinfo, -1, 0)

/* Registers and the stack hold the arguments alike for all of these functions, which take at most
 * seven words. */
typedef intptr_t word_function(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,
                               intptr_t);

enum function {
#define ROW(name, answer, number) FN_##name,
    FUNCTIONS(ROW)
#undef ROW
        FN_LIBRARY_COUNT,
    FN_LIBRARY_LAST = FN_LIBRARY_COUNT - 1,
#define ROW(name, answer, number) FN_##name,
    COMMAND_FUNCTIONS(ROW)
#undef ROW
        FN_COUNT
};

static word_function *real[FN_COUNT];
static _Atomic unsigned long calls[FN_COUNT];
static _Atomic unsigned long hits;
static atomic_bool is_paused;
static int chosen = FN_COUNT;
static unsigned long from, until;
static bool is_command;

static void write_counts(void);

static bool fails(enum function function)
{
    unsigned long call;

    if (atomic_load(&is_paused))
        return false;
    call = atomic_fetch_add(&calls[function], 1) + 1;
    if (function == FN_execlp || function == FN_execvp || function == FN_execvpe)
        write_counts();
    if ((int)function != chosen || call < from || call > until)
        return false;
    if (atomic_fetch_add(&hits, 1) == 0 && getenv("FAILING_STOP"))
        abort(); /* its stack shows which call it is */
    return true;
}

/* For ferror(); there is no function that sets it. */
static void set_error(intptr_t stream)
{
    ((FILE *)stream)->_flags |= 0x20; /* NOLINT(performance-no-int-to-ptr) */
}

#define ROW(name, answer, number)                                                                  \
    static intptr_t in_place_of_##name(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, \
                                       intptr_t f, intptr_t g)                                     \
    {                                                                                              \
        if (!fails(FN_##name))                                                                     \
            return real[FN_##name](a, b, c, d, e, f, g);                                           \
        if (FN_##name == FN_fgets || FN_##name == FN_fread)                                        \
            set_error(FN_##name == FN_fgets ? c : d);                                              \
        if ((number) != 0)                                                                         \
            errno = (number);                                                                      \
        return (answer);                                                                           \
    }
FUNCTIONS(ROW)
COMMAND_FUNCTIONS(ROW)
#undef ROW

static const struct {
    const char *name;
    word_function *function;
} functions[FN_COUNT] = {
#define ROW(name, answer, number) {#name, in_place_of_##name},
    FUNCTIONS(ROW) COMMAND_FUNCTIONS(ROW)
#undef ROW
};

/* FN_COUNT where the name is none of them; mmap64 is mmap. */
static int find(const char *name, size_t length)
{
    int count = is_command ? FN_COUNT : FN_LIBRARY_COUNT, i = 0;

    if (length > 2 && !strncmp(name + length - 2, "64", 2))
        length -= 2;
    while (i < count &&
           (strlen(functions[i].name) != length || strncmp(functions[i].name, name, length) != 0))
        i++;
    return i < count ? i : FN_COUNT;
}

/* ---- the table of addresses ---- */

static void replace(const struct dl_phdr_info *object, const ElfW(Rela) * row,
                    const ElfW(Sym) * symbols, const char *names)
{
    const char *name = names + symbols[ELF64_R_SYM(row->r_info)].st_name;
    void **place =
        (void **)(object->dlpi_addr + row->r_offset); /* NOLINT(performance-no-int-to-ptr) */
    uintptr_t page = (uintptr_t)place & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);
    int function = find(name, strlen(name));

    if (!ELF64_R_SYM(row->r_info) || row->r_addend || function == FN_COUNT || !*place)
        return;
    if (mprotect((void *)page, sizeof(void *) + ((uintptr_t)place - page), /* NOLINT */
                 PROT_READ | PROT_WRITE) != 0)
        abort();
    memcpy(&real[function], place, sizeof(void *));
    memcpy(place, &functions[function].function, sizeof(void *));
}

static void replace_in(const struct dl_phdr_info *object, uintptr_t rows, size_t bytes,
                       const ElfW(Sym) * symbols, const char *names)
{
    for (size_t i = 0; i < bytes / sizeof(ElfW(Rela)); i++)
        replace(object, (const ElfW(Rela) *)rows + i, symbols, names); /* NOLINT */
}

static int visit(struct dl_phdr_info *object, size_t size, void *data)
{
    const char *slash = strrchr(object->dlpi_name, '/');
    uintptr_t of[DT_NUM] = {0};

    (void)size;
    (void)data;
    if (is_command ? *object->dlpi_name : !slash || strcmp(slash, "/librmmshim.so") != 0)
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Dyn) * row;
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        row = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr); /* NOLINT */
        for (; row->d_tag != DT_NULL; row++)
            if (row->d_tag < DT_NUM)
                of[row->d_tag] = row->d_un.d_ptr;
    }
    replace_in(object, of[DT_JMPREL], of[DT_PLTRELSZ],
               (const ElfW(Sym) *)of[DT_SYMTAB],                                     /* NOLINT */
               (const char *)of[DT_STRTAB]);                                         /* NOLINT */
    replace_in(object, of[DT_RELA], of[DT_RELASZ], (const ElfW(Sym) *)of[DT_SYMTAB], /* NOLINT */
               (const char *)of[DT_STRTAB]);                                         /* NOLINT */
    return 1;
}

static void read_choice(const char *text)
{
    const char *name_end = strchr(text, ':');
    char *end;

    chosen = name_end ? find(text, (size_t)(name_end - text)) : FN_COUNT;
    if (chosen == FN_COUNT) {
        fprintf(stderr, "failing: FAILING='%s' is not understood\n", text);
        _exit(78);
    }
    from = strtoul(name_end + 1, &end, 10);
    until = strcmp(end, ":on") == 0 ? ~0UL : from;
}

__attribute__((constructor)) static void begin(void)
{
    is_command = getenv("FAILING_COMMAND") != NULL;
    if (is_command && strcmp(program_invocation_short_name, "rmmshim") != 0)
        return;
    if (getenv("FAILING"))
        read_choice(getenv("FAILING"));
    if (!dl_iterate_phdr(visit, NULL)) {
        fprintf(stderr, "failing: librmmshim.so is not there\n");
        _exit(78);
    }
}

void failing_pause(int pause)
{
    atomic_store(&is_paused, pause);
    if (hostcuda_fault_pause)
        hostcuda_fault_pause(pause);
}

/* One write for each process, so that the counts of several do not mix. */
__attribute__((destructor)) static void write_counts(void)
{
    const char *path = getenv("FAILING_COUNTS");
    FILE *file = path && real[FN_malloc] ? fopen(path, "a") : NULL;

    if (!file)
        return;
    setvbuf(file, NULL, _IOFBF, 1 << 16);
    for (int i = 0; i < FN_COUNT; i++)
        if (calls[i])
            fprintf(file, "%s %lu\n", functions[i].name, (unsigned long)calls[i]);
    if (hostcuda_all_calls)
        hostcuda_all_calls(file);
    fprintf(file, "failed %llu\n", hits + (hostcuda_fault_hits ? hostcuda_fault_hits() : 0));
    fclose(file);
}
