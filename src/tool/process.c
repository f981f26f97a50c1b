/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/process.h"

#include "base/check.h"
#include "base/process.h"
#include "context/block_counts.h"
#include "report/plain.h"
#include "report/publish.h"
#include "shared/published.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How long a process may take from closing its files to being gone, on a busy machine: 2 s. */
enum { ENDING_NAP_NS = 5 * 1000 * 1000, ENDING_TURNS = 400 };

/* ---- one process ---- */

ssize_t process_read_file(int directory, const char *name, char *text, size_t room)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, room - 1);

    if (fd >= 0)
        close(fd);
    if (length >= 0)
        text[length] = '\0';
    return length;
}

/* It has ended, or is a zombie without threads. */
static bool directory_has_ended(int directory)
{
    char stat[1024];

    return process_read_file(directory, "stat", stat, sizeof(stat)) <= 0 ||
           rs_process_stat_has_ended(stat);
}

bool process_directory_is_ending(int directory)
{
    const struct timespec turn = {0, ENDING_NAP_NS};
    struct stat status;
    bool has_ended;

    for (int i = 0; !(has_ended = directory_has_ended(directory)) && i < ENDING_TURNS; i++) {
        /* A process without a program file is about to be a zombie, or is a kernel thread. */
        if (fstatat(directory, "exe", &status, 0) == 0 || errno == EACCES)
            break;
        nanosleep(&turn, NULL);
    }
    return has_ended;
}

int process_own_number(const struct process *process)
{
    char status[8192];

    return process_read_file(process->directory, "status", status, sizeof(status)) > 0
               ? rs_process_own_number(status)
               : 0;
}

int process_parent(int number)
{
    char path[64], stat[1024], *behind_name;
    int parent = 0;

    snprintf(path, sizeof(path), "/proc/%d/stat", number);
    if (process_read_file(AT_FDCWD, path, stat, sizeof(stat)) <= 0)
        return 0;
    behind_name = strrchr(stat, ')');
    return behind_name && sscanf(behind_name + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

int process_open_file(const struct process *process, const char *name, int flags,
                      bool (*accepts)(int fd, void *data), void *data, enum process_answer *answer)
{
    int fds = openat(process->directory, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;
    DIR *listing = fds < 0 ? NULL : fdopendir(fds);
    const struct dirent *entry;
    char wanted[64];

    *answer = PROCESS_UNSERVED;
    if (!listing) {
        *answer = errno == EACCES || errno == EPERM ? PROCESS_DENIED : PROCESS_GONE;
        if (fds >= 0)
            close(fds);
        return -1;
    }
    snprintf(wanted, sizeof(wanted), "/memfd:%s (deleted)", name);
    while (fd < 0 && (entry = readdir(listing))) {
        char link[sizeof(wanted)];
        ssize_t length = readlinkat(fds, entry->d_name, link, sizeof(link));
        if (length != (ssize_t)strlen(wanted) || memcmp(link, wanted, (size_t)length) != 0)
            continue;
        fd = openat(fds, entry->d_name, flags | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 && (errno == EACCES || errno == EPERM))
            *answer = PROCESS_DENIED;
        if (fd >= 0 && !accepts(fd, data)) {
            close(fd);
            fd = -1;
        }
    }
    closedir(listing);
    return fd;
}

/* A forked child may have its parent's page open. */
static bool is_page_of(int fd, void *data)
{
    struct process *process = data;
    struct rs_publication head;
    struct stat status;
    int own = process_own_number(process);

    if (!rs_published_check_file(fd) || fstat(fd, &status) != 0 ||
        pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) || (own && head.process != own))
        return false;
    process->inode = (uint64_t)status.st_ino;
    return true;
}

static enum process_answer find_page(struct process *process)
{
    enum process_answer answer;
    int fd = process_open_file(process, "rmmshim", O_RDONLY, is_page_of, process, &answer);
    void *file;

    if (fd < 0)
        return answer;
    file = mmap(NULL, RS_PUBLISHED_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return PROCESS_DENIED;
    process->file = file;
    return rs_published_check_layout(file) ? PROCESS_SERVED : PROCESS_UNREADABLE;
}

enum process_answer process_open(int number, struct process *process)
{
    char path[64];

    *process = (struct process){.number = number};
    snprintf(path, sizeof(path), "/proc/%d", number);
    process->directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (process->directory < 0)
        return errno == EACCES || errno == EPERM ? PROCESS_DENIED : PROCESS_GONE;
    return process_has_ended(process) ? PROCESS_GONE : find_page(process);
}

void process_close(struct process *process)
{
    if (process->file)
        munmap((void *)(uintptr_t)process->file, RS_PUBLISHED_BYTES);
    if (process->directory >= 0)
        close(process->directory);
}

bool process_has_ended(const struct process *process)
{
    return directory_has_ended(process->directory);
}

static bool is_that_page(int fd, void *data)
{
    const struct process *process = data;
    struct stat status;

    return fstat(fd, &status) == 0 && (uint64_t)status.st_ino == process->inode;
}

bool process_has_its_page(const struct process *process)
{
    struct process copy = *process;
    enum process_answer answer;
    int fd = process_open_file(process, "rmmshim", O_RDONLY, is_that_page, &copy, &answer);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

const char *process_answer_text(enum process_answer answer)
{
    static const char *const texts[] = {
        [PROCESS_SERVED] = "is served",
        [PROCESS_UNSERVED] = "is not served by rmmshim",
        [PROCESS_GONE] = "does not exist",
        [PROCESS_DENIED] = "belongs to another user",
        [PROCESS_UNREADABLE] = "is served by another version of rmmshim",
    };

    return texts[answer];
}

/* ---- all processes ---- */

int process_parse(const char *text)
{
    char *end;
    long number;

    if (*text < '0' || *text > '9')
        return 0;
    errno = 0;
    number = strtol(text, &end, 10);
    return *end || errno || number <= 0 || number > INT_MAX ? 0 : (int)number;
}

int process_compare_numbers(const void *one, const void *other)
{
    int a = *(const int *)one, b = *(const int *)other;

    return (a > b) - (a < b);
}

int *process_list(size_t *count)
{
    DIR *listing = opendir("/proc");
    const struct dirent *entry;
    size_t room = 1024;
    int *numbers = listing ? malloc(room * sizeof(*numbers)) : NULL;

    *count = 0;
    while (numbers && (entry = readdir(listing))) {
        int number = process_parse(entry->d_name);
        if (!number)
            continue;
        if (*count == room) {
            int *more = realloc(numbers, 2 * room * sizeof(*numbers));
            if (!more)
                break; /* those that there is memory for */
            numbers = more;
            room *= 2;
        }
        numbers[(*count)++] = number;
    }
    if (listing)
        closedir(listing);
    if (numbers)
        qsort(numbers, *count, sizeof(*numbers), process_compare_numbers);
    return numbers;
}

/* ---- its script ---- */

enum { WORDS_BYTES = 4096, ENTRY_BYTES = 4096, STATUS_BYTES = 8192 };

/* Letters of options, by what the word behind them is unless it follows at once. */
static const struct interpreter {
    const char *name, *value, *code, *module;
} interpreters[] = {
    {"python", "WXQ", "c", "m"}, {"pypy", "WXQ", "c", "m"}, {"julia", "ptJHCL", "eE", ""},
    {"Rscript", "", "e", ""},    {"node", "r", "ep", ""},   {"ruby", "IrCE", "e", ""},
    {"perl", "I", "eE", ""},     {"bash", "oO", "c", ""},   {"sh", "o", "c", ""},
};

/* NULL: it is no interpreter.  Names have versions: python3.13t. */
static const struct interpreter *find_interpreter(const char *name)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(interpreters); i++) {
        size_t length = strlen(interpreters[i].name);
        const char *version = name + length;
        if (strncmp(name, interpreters[i].name, length) == 0 &&
            version[strspn(version, "0123456789.td")] == '\0')
            return &interpreters[i];
    }
    return NULL;
}

/* The next word, or NULL behind the last. */
static const char *next_word(const char *word, const char *end)
{
    word += strlen(word) + 1;
    return word < end ? word : NULL;
}

/* Takes an option at *word, which moves to its last word.  True where no script follows: *module is
 * then the module that runs instead, or NULL. */
static bool ends_options(const struct interpreter *of, const char **word, const char *end,
                         const char **module)
{
    const char *value;

    *module = NULL;
    if ((*word)[1] == '-') { /* of the long ones, Python has this one with a value */
        if (strcmp(*word, "--check-hash-based-pycs") == 0)
            *word = next_word(*word, end);
        return !*word;
    }
    for (const char *letter = *word + 1; *letter; letter++) {
        bool is_module = strchr(of->module, *letter) != NULL;
        if (strchr(of->code, *letter))
            return true;
        if (!is_module && !strchr(of->value, *letter))
            continue;
        value = letter[1] ? letter + 1 : (*word = next_word(*word, end));
        *module = is_module ? value : NULL;
        return is_module || !*word;
    }
    return !(*word)[1]; /* "-": what it reads from stdin */
}

void identity_script(const char *words, size_t bytes, char script[IDENTITY_SCRIPT_BYTES])
{
    const char *end = words + bytes, *word = words, *module = NULL;
    const struct interpreter *of = bytes ? find_interpreter(basename(words)) : NULL;

    *script = '\0';
    while (of && (word = next_word(word, end))) {
        if (strcmp(word, "--") == 0 && (word = next_word(word, end)))
            break;
        if (!word || *word != '-' || ends_options(of, &word, end, &module))
            break;
    }
    if (!of || !word)
        return;
    if (module)
        snprintf(script, IDENTITY_SCRIPT_BYTES, "-m %s", module);
    else if (*word != '-')
        snprintf(script, IDENTITY_SCRIPT_BYTES, "%s", basename(word));
    rs_plain_make(script);
}

static void read_script(int directory, const char *path, char script[IDENTITY_SCRIPT_BYTES])
{
    char words[WORDS_BYTES];
    ssize_t bytes = process_read_file(directory, path, words, sizeof(words));

    identity_script(words, bytes > 0 ? (size_t)bytes : 0, script);
}

void identity_script_of(int number, char script[IDENTITY_SCRIPT_BYTES])
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/cmdline", number);
    read_script(AT_FDCWD, path, script);
}

/* ---- its user ---- */

/* The same user owns most processes, and a name may come over the network. */
static void put_user(long user, char name[IDENTITY_USER_BYTES])
{
    static char known[IDENTITY_USER_BYTES];
    static long known_user = -1;
    char text[ENTRY_BYTES];
    struct passwd entry, *found = NULL;

    if (user != known_user) {
        snprintf(known, sizeof(known), "%ld", user);
        if (getpwuid_r((uid_t)user, &entry, text, sizeof(text), &found) == 0 && found &&
            *found->pw_name)
            snprintf(known, sizeof(known), "%s", found->pw_name);
        rs_plain_make(known);
    }
    known_user = user;
    memcpy(name, known, sizeof(known));
}

void identity_read(const struct process *process, struct identity *identity)
{
    char text[STATUS_BYTES];
    const char *line;
    long user;

    read_script(process->directory, "cmdline", identity->script);
    *identity->user = '\0';
    line = process_read_file(process->directory, "status", text, sizeof(text)) > 0
               ? strstr(text, "\nUid:")
               : NULL;
    if (line && sscanf(line, "\nUid:%*d%ld", &user) == 1)
        put_user(user, identity->user);
}

/* ---- its page ---- */

enum {
    TRIES = 16, /* a process whose directory changes as often while it is read is left out */

    /* Of a page that makes sense none comes near: who reads one that does not is done soon. */
    STACK_COUNTERS_MAX = 1024,
    PAGE_COUNTERS_MAX = 4096,
    FIELDS_MAX = 4 << 20,
};

bool publication_has_directory(const void *file)
{
    const struct rs_publication *head = file;

    return atomic_load(&head->directory) != 0;
}

/* ---- the directory of its page ---- */

/* A copy of the directory at `at`, since its process, which may have been anything, may write to
 * the file while it is read.  NULL where there is none. */
static struct rs_published_directory *copy_directory(const char *file, uint64_t at)
{
    struct rs_published_directory counts, *copy = NULL;
    uint64_t bytes;

    if (!rs_published_check_place(at))
        return NULL;
    memcpy(&counts, file + at, sizeof(counts));
    bytes = rs_published_check_directory(at, &counts);
    copy = bytes ? malloc(bytes) : NULL;
    if (copy) {
        memcpy(copy, file + at, bytes);
        *copy = counts;
    }
    return copy;
}

/* The process writes a new directory when stacks come or go, and the last but one is written over:
 * a copy counts when the directory is still the same after it. */
static bool take_directory(struct publication *page, const struct rs_publication *head)
{
    struct rs_published_stack *stacks;

    for (int i = 0; i < TRIES; i++) {
        uint64_t at = atomic_load(&head->directory);
        page->directory = copy_directory(page->file, at);
        if (!page->directory || atomic_load(&head->directory) == at)
            break;
        free(page->directory);
        page->directory = NULL;
    }
    if (!page->directory)
        return false;
    stacks = (void *)(page->directory + 1);
    for (uint32_t i = 0; i < page->directory->stack_count; i++) {
        stacks[i].expression[sizeof(stacks[i].expression) - 1] = '\0';
        rs_plain_make(stacks[i].expression);
    }
    page->from = stacks;
    page->counters = (const void *)(page->from + page->directory->stack_count);
    return true;
}

/* ---- its counters ---- */

/* Counts the fields that are to be read.  False where they have become too many. */
static bool take_fields(struct publication *page, const struct rs_published_counter *counter)
{
    for (uint32_t i = 0; i < counter->term_count; i++) {
        if (counter->terms[i].count > FIELDS_MAX - page->fields_read)
            return false;
        page->fields_read += counter->terms[i].count;
    }
    return true;
}

static void add_counter(struct publication *page, struct rs_report *report,
                        const struct rs_published_counter *counter)
{
    enum rs_counter_kind kind = (enum rs_counter_kind)counter->kind;
    struct rs_term terms[RS_TERMS_MAX];
    uint64_t value;

    for (uint32_t i = 0; i < counter->term_count; i++)
        terms[i] = (struct rs_term){page->file + counter->terms[i].offset, counter->terms[i].count,
                                    counter->terms[i].stride_bytes, counter->terms[i].scale};
    value = rs_terms_value(terms, counter->term_count);
    value = kind == RS_COUNTER_PEAK ? rs_max(value, counter->past) : value + counter->past;
    rs_report_add(report, counter->resource, counter->name, kind,
                  (enum rs_counter_unit)counter->unit, value);
}

static bool is_counter_of(const struct rs_counter *counter, const char *resource)
{
    return strcmp(counter->resource, resource) == 0;
}

/* An account that counted nothing is none.  The program's counters are there for kinds of memory,
 * too, that have no stack. */
static bool is_unused(const struct rs_report *report, const struct rs_counter *counter,
                      bool has_stack)
{
    if (is_counter_of(counter, "account"))
        return rs_report_value(report, "account", "limit", 0) == 0 &&
               rs_report_value(report, "account", "charged_peak", 0) == 0;
    return is_counter_of(counter, RS_PROGRAM) && !has_stack &&
           rs_report_value(report, RS_PROGRAM, "allocations", 0) == 0 &&
           rs_report_value(report, RS_PROGRAM, "refused", 0) == 0;
}

static bool has_resources(const struct rs_report *report)
{
    for (size_t i = 0; i < report->count; i++)
        if (!is_counter_of(&report->counters[i], "account") &&
            !is_counter_of(&report->counters[i], RS_PROGRAM))
            return true;
    return false;
}

static void copy_used(struct rs_report *to, const struct rs_report *from)
{
    bool has_stack = has_resources(from);

    for (size_t i = 0; i < from->count; i++) {
        const struct rs_counter *counter = &from->counters[i];
        if (!is_unused(from, counter, has_stack))
            rs_report_add(to, counter->resource, counter->name, counter->kind, counter->unit,
                          counter->value);
    }
}

static void gather_stack(struct publication *page, uint32_t index)
{
    struct rs_reported_stack *stack = &page->stacks[page->count];
    struct rs_report all = {.count = 0};
    size_t most = PAGE_COUNTERS_MAX;

    *stack = (struct rs_reported_stack){.device = page->from[index].device,
                                        .kind = (enum rs_kind)page->from[index].kind,
                                        .expression = page->from[index].expression};
    if (!rs_published_check_stack(&page->from[index]) ||
        publication_stack(page, stack) != &page->from[index])
        return;
    for (size_t i = 0; i < page->count; i++)
        most -= rs_min(most, page->stacks[i].report.count);
    most = rs_min(most, STACK_COUNTERS_MAX);
    for (uint32_t i = 0; i < page->directory->counter_count; i++) {
        const struct rs_published_counter *counter = &page->counters[i];
        if (counter->stack == index && all.count < most && rs_published_check_counter(counter) &&
            take_fields(page, counter))
            add_counter(page, &all, counter);
    }
    copy_used(&stack->report, &all);
    rs_report_release(&all);
    page->count += stack->report.count > 0;
}

bool publication_read(struct publication *page, const void *file)
{
    const struct rs_publication *head = file;

    *page = (struct publication){.file = file};
    memcpy(page->program, head->program, sizeof(page->program) - 1);
    memcpy(page->rank, head->rank, sizeof(page->rank) - 1);
    rs_plain_make(page->program);
    rs_plain_make(page->rank);
    page->process = (int)head->process;
    if (!take_directory(page, head))
        return false;
    for (uint32_t i = 0; i < page->directory->stack_count; i++)
        gather_stack(page, i);
    return page->count > 0;
}

const struct rs_published_stack *publication_stack(const struct publication *page,
                                                   const struct rs_reported_stack *stack)
{
    for (uint32_t i = 0; i < page->directory->stack_count; i++)
        if (page->from[i].device == stack->device && page->from[i].kind == (int32_t)stack->kind)
            return &page->from[i];
    return NULL;
}

void publication_release(struct publication *page)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(page->stacks); i++)
        rs_report_release(&page->stacks[i].report);
    free(page->directory);
    page->directory = NULL;
}
