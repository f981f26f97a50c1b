/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config.h"
#include "tool/describe.h"
#include "tool/profile.h"
#include "tool/program.h"
#include "tool/run/run.h"
#include "tool/tool.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICE_TEXT_BYTES = 16 };

/* ---- --framework-pools off: switches off the memory pools that frameworks keep on top of
 * cudaMalloc, without a change to the program ---- */

/* Folders of sitecustomize.py, relative to the directory of this command: installed, and in the
 * build tree. */
static const char *const python_places[] = {
    "../" RMMSHIM_LIBDIR "/rmmshim/framework-pools",
    "../lib/rmmshim/framework-pools",
    "../lib64/rmmshim/framework-pools",
    "framework-pools",
};

static bool set_unless_set(const char *name, const char *value)
{
    return getenv(name) || tool_set(name, value);
}

static bool is_off;

static bool switch_off(void)
{
    char folder[PATH_MAX];

    is_off = true;
    if (!library_find_beside(python_places, RS_ARRAY_LENGTH(python_places), folder)) {
        tool_say(
            "--framework-pools off: this installation lacks the folder framework-pools: install "
            "rmmshim again");
        return false;
    }
    return set_unless_set("PYTORCH_NO_CUDA_MEMORY_CACHING", "1") &&
           set_unless_set("XLA_PYTHON_CLIENT_ALLOCATOR", "platform") &&
           tool_set_first("PYTHONPATH", folder, ":");
}

bool run_is_set(const char *name)
{
    const char *value = getenv(name);

    return value && *value;
}

/* Called when all options were taken. If frameworks' pools were switched off, gives pinned memory a
 * pool, unless a setting describes its stack. CuPy copies through pinned memory, and has no pinned
 * pool of its own now. */
static bool settle_framework_pools(void)
{
    return !is_off || run_is_set("RMM_PINNED_POOL_SIZE") || run_is_set("RMM_PINNED_RESOURCE") ||
           run_is_set("RMM_HOOKS") || tool_set("RMM_PINNED_POOL_SIZE", "0");
}

static bool set_framework_pools(struct run_options *options, const char *value)
{
    (void)options;
    if (strcmp(value, "off") == 0)
        return switch_off();
    if (strcmp(value, "on") != 0)
        tool_say("--framework-pools=%s: expected on or off", value);
    return strcmp(value, "on") == 0;
}

/* ---- options of `run` itself ---- */

static bool set_fail_over(struct run_options *options, const char *value)
{
    const char *at, *reason;

    options->over_text = value;
    options->has_fail_over =
        rs_size_parse(value, value + strlen(value), &options->over, &at, &reason);
    if (!options->has_fail_over)
        tool_say("--fail-over=%s: %s", value, reason);
    else if (options->over.kind == RS_SIZE_OF_FREE)
        tool_say(
            "--fail-over=%s: expected a size, as in 8GiB, or a percentage of the device's memory, "
            "as in 50%%",
            value);
    return options->has_fail_over && options->over.kind != RS_SIZE_OF_FREE;
}

static bool set_profile(struct run_options *options, const char *value)
{
    if (options->profile)
        tool_say("--profile is given twice: %s and %s", options->profile, value);
    else
        options->profile = value;
    return options->profile == value;
}

#define MEMBER(field) .member = offsetof(struct run_options, field)

static const struct own_option {
    const char *name, *value, *help;
    /* The function that takes the value; NULL: the value is stored in `member`. */
    bool (*set)(struct run_options *options, const char *value);
    size_t member; /* the offset of the member that is set: to the text of the value; for a switch,
                      to true */
} own_options[] = {
    {"--profile", "NAME|FILE",
     "read settings from a profile or a file; options and environment variables take precedence "
     "over these settings",
     .set = set_profile},
    {"--quiet", NULL, "print no summary of memory use at the end", MEMBER(is_quiet)},
    {"--json", "PATH", "write the summary to PATH as JSON (-: stderr)", MEMBER(json)},
    {"--fail-over", "SIZE",
     "exit with 1 if a process's peaks of device and managed memory on one GPU add up to more than "
     "SIZE",
     .set = set_fail_over},
    {"--fail-on-leak", NULL, "exit with 1 if a process ended with GPU memory that it had not freed",
     MEMBER(fails_on_leak)},
    {"--find-min", NULL,
     "run the program repeatedly to find the smallest RMM_LIMIT with which it succeeds",
     MEMBER(finds_min)},
    {"--exec", NULL,
     "run the program in place of this command (exec), without a summary at the end",
     MEMBER(becomes)},
    {"--framework-pools", "on or off", NULL, .set = set_framework_pools},
};

/* Returns the option of that name among those that set no variable; NULL if there is none. */
static const struct own_option *find_own(const char *word)
{
    size_t length = strcspn(word, "=");

    for (size_t i = 0; i < RS_ARRAY_LENGTH(own_options); i++)
        if (strlen(own_options[i].name) == length &&
            strncmp(own_options[i].name, word, length) == 0)
            return &own_options[i];
    return NULL;
}

static bool take_own(const struct own_option *option, char ***arguments,
                     struct run_options *options)
{
    const char *value = strchr(**arguments, '=');
    void *member = (char *)options + option->member;

    if (!option->value && !value)
        return *(bool *)member = true;
    if (!option->value)
        tool_say("%s takes no value", option->name);
    else if ((value = value ? value + 1 : *++*arguments) && *value)
        return option->set ? option->set(options, value) : (*(const char **)member = value) != NULL;
    else
        tool_say("%s needs a value: expected %s", option->name, option->value);
    return false;
}

/* ---- options that set variables ---- */

/* The parts of "--pool-size-1=4GiB". */
struct given_option {
    const struct rs_variable *variable;
    /* The end of the variable's name: "_1" for device 1, or "" for all devices. */
    char device[DEVICE_TEXT_BYTES];
    const char *value; /* after '=', or NULL */
};

/* Returns the variable whose option is the first `length` bytes of `text`. */
static const struct rs_variable *variable_of_option(const char *text, size_t length)
{
    char option[DESCRIBE_BYTES];

    for (size_t i = 0; rs_variables[i].option.name; i++) {
        describe_run_option(&rs_variables[i], option);
        if (strlen(option) == length && strncmp(option, text, length) == 0)
            return &rs_variables[i];
    }
    return NULL;
}

static bool parse_variable_option(const char *text, struct given_option *option)
{
    size_t length = strcspn(text, "=");
    size_t digits = 0;

    *option = (struct given_option){.value = text[length] ? text + length + 1 : NULL};
    option->variable = variable_of_option(text, length);
    if (option->variable)
        return true;
    while (digits < length && text[length - 1 - digits] >= '0' && text[length - 1 - digits] <= '9')
        digits++;
    if (digits == 0 || digits + 2 > DEVICE_TEXT_BYTES || text[length - 1 - digits] != '-')
        return false;
    snprintf(option->device, sizeof(option->device), "_%.*s", (int)digits, text + length - digits);
    option->variable = variable_of_option(text, length - digits - 1);
    return option->variable != NULL;
}

/* Suggests our option for an option that is named like a parameter of RMM.  False if `given` is no
 * such name. */
static bool say_guide_word(const char *given)
{
    char text[DESCRIBE_BYTES];

    for (size_t i = 0; rs_variables[i].option.name; i++)
        for (size_t j = 0; j < RS_GUIDE_WORDS_MAX && rs_variables[i].guide_words[j].name; j++) {
            const struct rs_guide_word *word = &rs_variables[i].guide_words[j];
            if (strcmp(describe_option_name(word->name, text), given) != 0)
                continue;
            tool_say("unknown option '%s'; did you mean '%s%s'?", given,
                     describe_run_option(&rs_variables[i], text), word->lists_devices ? "-0" : "");
            return true;
        }
    return false;
}

static void say_unknown_option(const char *text)
{
    char options[RS_VARIABLE_COUNT][DESCRIBE_BYTES];
    const char *words[RS_VARIABLE_COUNT + RS_ARRAY_LENGTH(own_options) + 3] = {NULL};
    char given[DESCRIBE_BYTES];
    size_t count = 0;

    for (; rs_variables[count].option.name; count++)
        words[count] = describe_run_option(&rs_variables[count], options[count]);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(own_options); i++)
        words[count++] = own_options[i].name;
    words[count++] = "--help-all";
    words[count] = "--help";
    snprintf(given, sizeof(given), "%.*s", (int)strcspn(text, "="), text);
    if (!say_guide_word(given))
        tool_say_unknown("option", given, words);
}

static bool is_yes_or_no(const struct rs_variable *variable, const char *word)
{
    struct rs_diagnostics nobody = {.write = tool_ignore_line};
    struct rs_source source = {variable->option.name, word};
    struct rs_option_value value = {.given = false};

    return rs_option_parse(&variable->option, RS_OPTION_BOOLEAN, &source, word, word + strlen(word),
                           &nobody, &value);
}

/* True when the word after a switch is its value and not the program or the next option. 0, 1 and
 * an empty word always are its value. Any other valid value is if more words follow it: as the last
 * word, `true` is taken as the program of that name. */
static bool is_switch_value(const struct rs_variable *variable, char *const *word)
{
    if (!*word)
        return false;
    if (!**word) /* an empty word ("$UNSET") is no program's name */
        return true;
    if (!(variable->is_report ? rs_config_is_report(*word) : is_yes_or_no(variable, *word)))
        return false;
    return strcmp(*word, "0") == 0 || strcmp(*word, "1") == 0 || word[1];
}

bool run_options_has(const char *word)
{
    struct given_option option;

    return find_own(word) || parse_variable_option(word, &option);
}

bool run_options_take(char ***arguments, struct run_options *options)
{
    struct given_option option;
    char name[DESCRIBE_BYTES];
    const char *given;

    if (find_own(**arguments))
        return take_own(find_own(**arguments), arguments, options);
    if (!parse_variable_option(**arguments, &option)) {
        say_unknown_option(**arguments);
        return false;
    }
    given = **arguments;
    if (!option.value && describe_is_switch(option.variable))
        option.value = is_switch_value(option.variable, *arguments + 1) ? *++*arguments : "1";
    else if (!option.value && (*arguments)[1])
        option.value = *++*arguments;
    /* `--limit "$UNSET"` must not run the program without a limit, though an empty variable counts
     * as not set. */
    if (!option.value || !*option.value) {
        tool_say("%.*s needs a value", (int)strcspn(given, "="), given);
        return false;
    }
    snprintf(name, sizeof(name), "%s%s", option.variable->option.name, option.device);
    return tool_set(name, option.value);
}

/* ---- together ---- */

bool run_options_agree(const struct run_options *options)
{
    const char *left = options->json            ? "--json"
                       : options->has_fail_over ? "--fail-over"
                       : options->fails_on_leak ? "--fail-on-leak"
                       : options->finds_min     ? "--find-min"
                                                : NULL;

    if (!settle_framework_pools())
        return false;
    if (options->becomes && left) {
        tool_say(
            "%s cannot be used together with --exec: `rmmshim run` must stay the program's parent",
            left);
        return false;
    }
    if (options->finds_min && (options->has_fail_over || options->fails_on_leak)) {
        tool_say("--find-min cannot be used together with --fail-over or --fail-on-leak");
        return false;
    }
    for (char **entry = environ; options->finds_min && *entry; entry++)
        if (fnmatch("RMM_LIMIT@(=|_[0-9])*", *entry, FNM_EXTMATCH) == 0) {
            tool_say("--find-min sets RMM_LIMIT itself: remove %s", *entry);
            return false;
        }
    return true;
}

/* ---- the help ---- */

enum { TERM_BYTES = 2 * DESCRIBE_BYTES, MEANING_BYTES = 512 };

static const char *const group_titles[RS_GROUPS] = {
    [RS_GROUP_LIMITS] = "Limits",
    [RS_GROUP_STACK] = "How device memory is allocated",
    [RS_GROUP_OTHER_KINDS] = "How pinned host memory and managed memory are allocated",
    [RS_GROUP_REPORTS] = "Reports",
    [RS_GROUP_PROCESS] = "Which processes and calls rmmshim serves, and how it behaves in them",
};

/* Prints the help of a variable's option.  `is_short`: without the part after a semicolon. */
static void print_variable(const struct rs_variable *variable, bool is_short)
{
    char option[DESCRIBE_BYTES], type[DESCRIBE_BYTES], term[TERM_BYTES], meaning[MEANING_BYTES];
    bool is_switch = describe_is_switch(variable);
    const char *help = variable->option.help;

    snprintf(term, sizeof(term), "%s%s%s%s", describe_run_option(variable, option),
             is_switch ? "[=" : " ", rs_option_type_text(&variable->option, type, sizeof(type)),
             is_switch ? "]" : "");
    snprintf(meaning, sizeof(meaning), "%.*s", (int)strcspn(help, is_short ? ";" : ""), help);
    tool_print_term(term, meaning);
}

/* Prints the options of a group.  `is_short`: only the most used ones, without a title. */
static void print_group(enum rs_group group, bool is_short)
{
    if (!is_short)
        printf("\n%s:\n", group_titles[group]);
    for (size_t i = 0; rs_variables[i].option.name; i++)
        if (rs_variables[i].group == group && (rs_variables[i].is_common || !is_short))
            print_variable(&rs_variables[i], is_short);
}

static void print_own(void)
{
    char term[TERM_BYTES];

    puts("\nThe run itself:");
    for (size_t i = 0; i < RS_ARRAY_LENGTH(own_options); i++) {
        const struct own_option *option = &own_options[i];
        if (!option->help) /* the option has a paragraph of its own */
            continue;
        snprintf(term, sizeof(term), "%s%s%s", option->name, option->value ? " " : "",
                 option->value ? option->value : "");
        tool_print_term(term, option->help);
    }
    tool_print_term(
        "--framework-pools on|off",
        "on (the default): leave the memory pools of PyTorch, CuPy and JAX as they are; off: "
        "switch them off, so that rmmshim serves all that these frameworks allocate. This sets "
        "PYTORCH_NO_CUDA_MEMORY_CACHING and XLA_PYTHON_CLIENT_ALLOCATOR unless they are set, and "
        "puts a folder with a sitecustomize.py for CuPy first in PYTHONPATH (Python's options -E, "
        "-I and -S skip it). Pinned memory then gets a pool, too, which starts empty "
        "(--pinned-pool-size 0), unless a setting for pinned memory, or RMM_HOOKS, is given.");
    tool_print_term("--help", "show the most common options and examples");
    tool_print_term("--help-all", "show this help");
}

void run_options_print_help(void)
{
    puts("The most common options:");
    for (enum rs_group group = RS_GROUP_LIMITS; group < RS_GROUPS; group++)
        print_group(group, true);
    tool_print_term("--help-all", "show all options and the exit codes");
    puts("\n"
         "Sizes are written as 8GiB, 512MiB, 80% (of the GPU's memory) or 80%free (of its\n"
         "free memory). Each option sets an environment variable: --pool-size 4GiB means\n"
         "RMM_POOL_SIZE=4GiB.\n\n"
         "Examples:\n"
         "  rmmshim run --limit 8GiB python3 train.py\n"
         "      The program sees a GPU of 8 GiB, and cannot allocate more than that.\n"
         "  rmmshim run --limit-job 16GiB torchrun --nproc-per-node 4 train.py\n"
         "      torchrun and all processes that it starts share 16 GiB of each GPU.\n"
         "  rmmshim run --pool-size 0 --fallback managed ./app\n"
         "      Memory comes from a pool; what does not fit becomes managed memory.\n"
         "  rmmshim run --tracking --statistics json:%p.json ./app\n"
         "      Leaks are listed by call site at the end; PID.json has the memory use.");
}

void run_options_print_all_help(void)
{
    tool_print_paragraph(
        "Everything after the program's name is passed to the program. Each option that is not "
        "listed under \"The run itself\" can be set by an environment variable too: --pool-size "
        "4GiB is RMM_POOL_SIZE=4GiB. An option that ends with the number of a device applies to "
        "that device alone: --pool-size-1 4GiB, or RMM_POOL_SIZE_1=4GiB. If the value of an option "
        "is shown in brackets, the value may be left out, and is 1 then: --managed means --managed "
        "1. If the word after such an option is not a valid value, it is taken as the program's "
        "name. If the program's name would be a valid value, as 1 would, write `--` before it.");
    print_own();
    for (enum rs_group group = RS_GROUP_LIMITS; group < RS_GROUPS; group++)
        print_group(group, false);
    profile_print_help();
    putchar('\n');
    tool_print_paragraph(
        "While the program runs, this command stays as its parent: it passes signals on, ends with "
        "the program's exit code or signal, and writes the report of --statistics for each process "
        "that could not write it, as after a signal or _exit. At the end it prints to stderr how "
        "much memory each process used, and which processes were seen to use CUDA without rmmshim; "
        "short-lived processes can be missed.");
    putchar('\n');
    tool_print_paragraph(
        "Exit codes: that of the program; 1 if the check of --fail-over, --fail-on-leak or "
        "--find-min fails; 125 if a setting is wrong or the library cannot be loaded; 126 if the "
        "program cannot be executed; 127 if it is not found.");
}
