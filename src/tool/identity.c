/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/identity.h"

#include "base/check.h"
#include "report/plain.h"

#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* ---- the script ---- */

enum { WORDS_BYTES = 4096 };

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

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
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
    const struct interpreter *of = bytes ? find_interpreter(base_name(words)) : NULL;

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
        snprintf(script, IDENTITY_SCRIPT_BYTES, "%s", base_name(word));
    rs_plain_make(script);
}

static void read_script(const struct process *process, char script[IDENTITY_SCRIPT_BYTES])
{
    char words[WORDS_BYTES];
    ssize_t bytes = process_read_file(process, "cmdline", words, sizeof(words));

    identity_script(words, bytes > 0 ? (size_t)bytes : 0, script);
}

void identity_script_of(int number, char script[IDENTITY_SCRIPT_BYTES])
{
    struct process process = {.number = number};
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d", number);
    process.directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *script = '\0';
    if (process.directory < 0)
        return;
    read_script(&process, script);
    close(process.directory);
}

/* ---- the user ---- */

enum { ENTRY_BYTES = 4096, STATUS_BYTES = 8192 };

static void put_user(long user, char name[IDENTITY_USER_BYTES])
{
    char text[ENTRY_BYTES];
    struct passwd entry, *found = NULL;

    if (getpwuid_r((uid_t)user, &entry, text, sizeof(text), &found) == 0 && found &&
        *found->pw_name)
        snprintf(name, IDENTITY_USER_BYTES, "%s", found->pw_name);
    else
        snprintf(name, IDENTITY_USER_BYTES, "%ld", user);
    rs_plain_make(name);
}

/* The same user owns most processes, and a name may come over the network. */
static void put_known_user(long user, char name[IDENTITY_USER_BYTES])
{
    static char known[IDENTITY_USER_BYTES];
    static long known_user = -1;

    if (user != known_user)
        put_user(user, known);
    known_user = user;
    memcpy(name, known, sizeof(known));
}

void identity_read(const struct process *process, struct identity *identity)
{
    char text[STATUS_BYTES];
    const char *line;
    long user;

    read_script(process, identity->script);
    *identity->user = '\0';
    line = process_read_file(process, "status", text, sizeof(text)) > 0 ? strstr(text, "\nUid:")
                                                                        : NULL;
    if (line && sscanf(line, "\nUid:%*d%ld", &user) == 1)
        put_known_user(user, identity->user);
}
