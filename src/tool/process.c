/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/process.h"

#include "base/check.h"
#include "base/file.h"
#include "base/process.h"
#include "context/block_counts.h"
#include "report/plain.h"
#include "report/publish.h"
#include "shared/published.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A process may take 2 s from closing its files to its end, on a busy machine. */
enum { ENDING_NAP_US = 5 * 1000, ENDING_TURNS = 400 };

enum { LIST_STEP = 1024 };

/* ---- one process ---- */

const char *process_path(const struct process *process, const char *name,
                         char path[PROCESS_PATH_BYTES])
{
    snprintf(path, PROCESS_PATH_BYTES, "/proc/self/fd/%d%s", process->directory, name);
    return path;
}

bool process_has_ended(const struct process *process)
{
    char stat[RS_PROCESS_TEXT_BYTES], path[PROCESS_PATH_BYTES];
    ssize_t length = rs_file_text(process_path(process, "/stat", path), stat, sizeof(stat));

    if (length < 0)
        return process_answer_of(-errno) != PROCESS_LACKING;
    return length == 0 || rs_process_stat_has_ended(stat);
}

bool process_is_ending(const struct process *process)
{
    struct stat status;
    bool has_ended;

    for (int i = 0; !(has_ended = process_has_ended(process)) && i < ENDING_TURNS; i++) {
        /* A process without a program file is about to become a zombie, or is a kernel thread. */
        if (fstatat(process->directory, "exe", &status, 0) == 0 || errno == EACCES)
            break;
        usleep(ENDING_NAP_US);
    }
    return has_ended;
}

enum process_answer process_answer_of(int failed)
{
    switch (-failed) {
    case ENODATA:
        return PROCESS_UNSERVED;
    case EACCES:
    case EPERM:
        return PROCESS_DENIED;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        return PROCESS_LACKING;
    default:
        return PROCESS_GONE;
    }
}

const void *process_map_page(int fd, uint64_t *inode)
{
    void *page = MAP_FAILED;
    struct stat status;

    if (rs_published_check_file(fd) && fstat(fd, &status) == 0)
        page = mmap(NULL, RS_PUBLISHED_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return NULL;
    *inode = status.st_ino;
    return page;
}

static enum process_answer map_own_page(struct process *process)
{
    char path[PROCESS_PATH_BYTES];
    int fd = rs_published_find(process_path(process, "", path), 0, 0);

    if (fd < 0)
        return process_answer_of(fd);
    errno = 0;
    process->file = process_map_page(fd, &process->inode);
    close(fd);
    if (!process->file)
        return errno == ENOMEM ? PROCESS_LACKING : PROCESS_DENIED;
    return rs_published_check_layout(process->file) ? PROCESS_SERVED : PROCESS_UNREADABLE;
}

enum process_answer process_open(int number, struct process *process)
{
    char path[PROCESS_PATH_BYTES];

    *process = (struct process){.number = number};
    snprintf(path, sizeof(path), "/proc/%d", number);
    process->directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (process->directory < 0)
        return process_answer_of(-errno);
    return process_has_ended(process) ? PROCESS_GONE : map_own_page(process);
}

void process_close(struct process *process)
{
    if (process->file)
        munmap((void *)(uintptr_t)process->file, RS_PUBLISHED_BYTES);
    if (process->directory >= 0)
        close(process->directory);
}

bool process_has_its_page(const struct process *process)
{
    char path[PROCESS_PATH_BYTES];
    int fd = rs_published_find(process_path(process, "", path), 0, 0);
    struct stat status;
    bool has;

    if (fd < 0)
        return process_answer_of(fd) == PROCESS_LACKING;
    has = fstat(fd, &status) == 0 && (uint64_t)status.st_ino == process->inode;
    close(fd);
    return has;
}

const char *process_answer_text(enum process_answer answer)
{
    static const char denied[] = "belongs to another user, or protects itself (PR_SET_DUMPABLE); "
                                 "`rmmshim doctor PID` says what to do";
    static const char *const texts[] = {
        [PROCESS_SERVED] = "is served",
        [PROCESS_UNSERVED] = "is not served by rmmshim; `rmmshim doctor PID` says why",
        [PROCESS_GONE] = "does not exist",
        [PROCESS_DENIED] = denied,
        [PROCESS_UNREADABLE] =
            ("uses another version of rmmshim, whose counters this command cannot read: "
             "use the command of that version"),
        [PROCESS_LACKING] =
            "cannot be examined: this command lacks host memory or file descriptors",
    };

    return texts[answer];
}

/* ---- all processes ---- */

int process_compare_numbers(const void *one, const void *other)
{
    int a = *(const int *)one, b = *(const int *)other;

    return (a > b) - (a < b);
}

int *process_list(size_t *count)
{
    struct rs_listing listing;
    int *numbers = NULL, *more = NULL, number, failed = 0;
    bool is_whole = rs_listing_open(&listing, "/proc");
    const char *name;

    *count = 0;
    while (is_whole && (name = rs_listing_next(&listing))) {
        number = rs_process_parse(name);
        if (!number)
            continue;
        more = *count % LIST_STEP ? numbers
                                  : realloc(numbers, (*count + LIST_STEP) * sizeof(*numbers));
        is_whole = more != NULL;
        numbers = more ? more : numbers;
        if (is_whole)
            numbers[(*count)++] = number;
    }
    if (!is_whole || listing.bytes < 0) {
        failed = errno;
        free(numbers);
        numbers = NULL;
    }
    if (listing.fd >= 0)
        rs_file_close(listing.fd);
    errno = failed;
    if (numbers)
        qsort(numbers, *count, sizeof(*numbers), process_compare_numbers);
    return numbers;
}

/* ---- what /proc says of one ---- */

int process_parent_in(const char *stat)
{
    const char *behind_name = strrchr(stat, ')');
    int parent = 0;

    return behind_name && sscanf(behind_name + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

int process_parent(int number)
{
    char stat[RS_PROCESS_TEXT_BYTES];

    return rs_process_read(number, "stat", stat) ? process_parent_in(stat) : 0;
}

FILE *process_file(const char *directory, const char *name)
{
    char path[PROCESS_PATH_BYTES];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return fopen(path, "re");
}

char **process_environment(const char *directory)
{
    FILE *file = process_file(directory, "environ");
    char **all = NULL, *entry = NULL;
    size_t count = 0, room = 0;

    while (file && getdelim(&entry, &room, '\0', file) > 0) {
        all = tool_grow((void *)all, (count + 2) * sizeof(*all));
        all[count++] = entry;
        entry = NULL;
    }
    free(entry);
    if (file && !count && !ferror(file))
        all = tool_grow(NULL, sizeof(*all));
    if (all)
        all[count] = NULL;
    if (file)
        (void)fclose(file);
    return all;
}

void process_free_environment(char **environment)
{
    for (size_t i = 0; environment && environment[i]; i++)
        free(environment[i]);
    free((void *)environment);
}

bool process_next_mapping(FILE *maps, struct process_mapping *mapping)
{
    unsigned long begin, end, offset;
    char access[5];
    int at = 0;

    while (maps && getline(&mapping->line, &mapping->room, maps) > 0) {
        mapping->line[strcspn(mapping->line, "\n")] = '\0';
        if (sscanf(mapping->line, "%lx-%lx %4s %lx %*s %*s %n", &begin, &end, access, &offset,
                   &at) < 4 ||
            !at)
            continue;
        mapping->begin = begin;
        mapping->end = end;
        mapping->offset = offset;
        mapping->has_code = access[2] == 'x';
        mapping->name = mapping->line + at;
        return true;
    }
    free(mapping->line);
    mapping->line = NULL;
    if (maps && !feof(maps) && !ferror(maps))
        tool_say("out of host memory: not all that a process has mapped is known");
    if (maps)
        (void)fclose(maps);
    return false;
}

/* ---- its script ---- */

enum { WORDS_BYTES = 4096 };

/* For each interpreter, the letters of its options that have an argument, in the same word or as
 * the next one: options with some value, with code to run (or without a file to run), and with the
 * name of a module. A shell's values are always the next word. Of long options these are known: '='
 * follows one whose value may be the next word, '!' one with code, and a space one without a value.
 */
static const struct interpreter {
    const char *name, *value, *next_value, *code, *module, *long_options;
} interpreters[] = {
    {"python", "WXQ", "", "c", "m", "check-hash-based-pycs="},
    {"pypy", "WXQ", "", "c", "m", "check-hash-based-pycs=jit="},
    {"julia", "ptJHCLOg", "", "eE", "m", "project threads=eval!print!"},
    {"Rscript", "", "", "e", "", "vanilla no-save no-environ no-restore verbose "},
    {"node", "rC", "", "ep", "", "require=import=eval!print!"},
    {"ruby", "IrCXE", "", "e", "", "encoding=disable=enable=yjit "},
    {"perl", "IMm", "", "eE", "", ""},
    {"bash", "", "oO", "cs", "", "rcfile=init-file=login norc noprofile noediting posix "},
    {"sh", "", "oO", "cs", "", "rcfile=init-file=login norc noprofile noediting posix "},
};

/* Returns the interpreter of that name, which may include a version (python3.13t); NULL: it is no
 * interpreter. */
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

/* Returns the next word, or NULL after the last. */
static const char *next_word(const char *word, const char *end)
{
    word += strlen(word) + 1;
    return word < end ? word : NULL;
}

/* A shell also has options that begin with '+'. */
static bool is_option(const char *word)
{
    return *word == '-' || *word == '+';
}

/* Returns the character that follows a long option in the list of those that are known; '\0' if it
 * is not there. */
static char find_long_option(const char *known, const char *name, size_t length)
{
    for (size_t known_length; *known; known += known_length + 1) {
        known_length = strcspn(known, "=! ");
        if (known_length == length && memcmp(known, name, length) == 0)
            return known[length];
    }
    return '\0';
}

/* Skips the option at *word, which moves to the option's last word.  Returns true if no script
 * follows, or it is not known where; *module is then the module that runs instead, or NULL. */
static bool ends_options(const struct interpreter *of, const char **word, const char *end,
                         const char **module)
{
    bool is_long = (*word)[1] == '-';
    const char *name = *word + 1 + is_long, *value;
    size_t length = strcspn(name, "=");
    char known = find_long_option(of->long_options, name, length);

    *module = NULL;
    if (is_long || known) { /* bash takes its long options with one dash, too */
        if (known == '=' && !name[length])
            *word = next_word(*word, end);
        return known == '!' || !*word || (!known && !name[length]);
    }
    for (const char *letter = name; *letter && *word; letter++) {
        bool is_module = strchr(of->module, *letter) != NULL;
        if (strchr(of->code, *letter))
            return true;
        if (strchr(of->next_value, *letter))
            *word = next_word(*word, end);
        if (!is_module && !strchr(of->value, *letter))
            continue;
        value = letter[1] ? letter + 1 : (*word = next_word(*word, end));
        *module = is_module ? value : NULL;
        return is_module || !*word;
    }
    return !*word || !*name; /* "-": the script is read from stdin */
}

void identity_script(const char *words, size_t bytes, char script[IDENTITY_SCRIPT_BYTES])
{
    const char *end = words + bytes, *word = words, *module = NULL;
    const struct interpreter *of = bytes ? find_interpreter(basename(words)) : NULL;

    *script = '\0';
    while (of && (word = next_word(word, end)) && is_option(word)) {
        if (strcmp(word, "--") == 0) {
            word = next_word(word, end);
            break;
        }
        if (ends_options(of, &word, end, &module)) {
            word = NULL;
            break;
        }
    }
    if (module)
        snprintf(script, IDENTITY_SCRIPT_BYTES, "-m %s", module);
    else if (of && word && !is_option(word))
        snprintf(script, IDENTITY_SCRIPT_BYTES, "%s", basename(word));
    rs_plain_make(script);
}

static void read_script_of(const char *path, char script[IDENTITY_SCRIPT_BYTES])
{
    char words[WORDS_BYTES];
    ssize_t bytes = rs_file_text(path, words, sizeof(words));

    identity_script(words, bytes > 0 ? (size_t)bytes : 0, script);
}

void identity_script_of(int number, char script[IDENTITY_SCRIPT_BYTES])
{
    char path[PROCESS_PATH_BYTES];

    snprintf(path, sizeof(path), "/proc/%d/cmdline", number);
    read_script_of(path, script);
}

/* ---- its user ---- */

/* Writes a user's name.  The last name is remembered, since most processes have the same user, and
 * looking a name up may use the network. */
static void put_user(long user, char name[IDENTITY_USER_BYTES])
{
    static char known[IDENTITY_USER_BYTES];
    static long known_user = -1;
    const struct passwd *found;

    if (user != known_user) {
        found = getpwuid((uid_t)user);
        snprintf(known, sizeof(known), "%ld", user);
        if (found && *found->pw_name)
            snprintf(known, sizeof(known), "%s", found->pw_name);
        rs_plain_make(known);
    }
    known_user = user;
    memcpy(name, known, sizeof(known));
}

void identity_read(const struct process *process, struct identity *identity)
{
    char text[RS_PROCESS_TEXT_BYTES], path[PROCESS_PATH_BYTES];
    const char *line;
    long user;

    read_script_of(process_path(process, "/cmdline", path), identity->script);
    *identity->user = '\0';
    (void)rs_file_text(process_path(process, "/status", path), text, sizeof(text));
    line = strstr(text, "\nUid:");
    if (line && sscanf(line, "\nUid:%*d%ld", &user) == 1)
        put_user(user, identity->user);
}

/* ---- its page ---- */

enum {
    TRIES = 16, /* a process whose directory changes this often while it is read is left out */

    /* A valid page has far fewer counters and fields.  These bounds keep the reading of an invalid
     * page short. */
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

/* Returns a copy of the directory at `at`; NULL if there is none, or an invalid one.  The copy is
 * needed since the process may be any program, and may change the page while it is read. */
static struct rs_published_directory *copy_directory(const char *file, uint64_t at, bool *is_short)
{
    struct rs_published_directory counts, *copy = NULL;
    uint64_t bytes;

    if (!rs_published_check_place(at))
        return NULL;
    memcpy(&counts, file + at, sizeof(counts));
    bytes = rs_published_check_directory(at, &counts);
    copy = bytes ? malloc(bytes) : NULL;
    *is_short |= bytes && !copy;
    if (copy) {
        memcpy(copy, file + at, bytes);
        *copy = counts;
    }
    return copy;
}

/* Copies the directory.  The process writes a new directory when stacks were made or dropped, in
 * place of the last but one; so a copy is good if the process's directory is still at the same
 * place afterwards. */
static bool take_directory(struct publication *page, const struct rs_publication *head)
{
    struct rs_published_stack *stacks;

    for (int i = 0; i < TRIES; i++) {
        uint64_t at = atomic_load(&head->directory);
        page->directory = copy_directory(page->file, at, &page->is_short);
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

/* Counts the fields that a counter reads.  Returns false when the page has too many. */
static bool take_fields(struct publication *page, const struct rs_published_counter *counter)
{
    for (uint32_t i = 0; i < counter->term_count; i++) {
        if (counter->terms[i].count > FIELDS_MAX - page->fields_read)
            return false;
        page->fields_read += counter->terms[i].count;
    }
    return true;
}

static void add_published_counter(struct publication *page, struct rs_report *report,
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

/* Removes counters of devices and kinds of memory that the program does not use: those of an
 * account to which nothing was charged and that has no limit, and those of the program if it made
 * no request and there is no stack. */
static void drop_uncounted(struct rs_report *report)
{
    bool has_account = rs_report_value(report, "account", "limit", 0) ||
                       rs_report_value(report, "account", "charged_peak", 0);
    bool has_program = rs_report_value(report, RS_PROGRAM, "allocations", 0) ||
                       rs_report_value(report, RS_PROGRAM, "refused", 0);
    size_t kept = 0;

    for (size_t i = 0; i < report->count; i++)
        has_program |= strcmp(report->counters[i].resource, "account") != 0 &&
                       strcmp(report->counters[i].resource, RS_PROGRAM) != 0;
    for (size_t i = 0; i < report->count; i++) {
        const char *resource = report->counters[i].resource;
        if ((has_account || strcmp(resource, "account") != 0) &&
            (has_program || strcmp(resource, RS_PROGRAM) != 0))
            report->counters[kept++] = report->counters[i];
    }
    report->count = kept;
}

static void gather_stack(struct publication *page, uint32_t index)
{
    struct rs_reported_stack *stack = &page->stacks[page->count];
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
        if (counter->stack == index && stack->report.count < most &&
            rs_published_check_counter(counter) && take_fields(page, counter))
            add_published_counter(page, &stack->report, counter);
    }
    page->is_short |= stack->report.is_short;
    drop_uncounted(&stack->report);
    if (stack->report.count > 0)
        page->count++;
    else
        rs_report_release(&stack->report);
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

bool publication_read_all(struct publication *page, const void *file)
{
    bool is_read = publication_read(page, file);

    if (page->is_short)
        tool_end_without_memory();
    return is_read;
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
