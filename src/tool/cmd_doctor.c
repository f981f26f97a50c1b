/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim doctor: says whether memory is served, and if not why. */
#include "tool/doctor/doctor.h"
#include "tool/process.h"
#include "tool/tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- findings ---- */

void doctor_add(struct doctor *doctor, bool is_problem, const char *topic, const char *step,
                const char *format, ...)
{
    struct rs_node *finding = rs_node_object(doctor->findings, NULL), *said;
    char text[DOCTOR_TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    finding->line = "[{problem?}  !][{problem!}  -] {topic}: {text}[ -> {step}]\n";
    rs_node_word(finding, "topic", topic);
    rs_node_flag(finding, "problem", is_problem);
    said = rs_node_text(finding, "text", text);
    rs_node_word(finding, "step", step ? step : "");
    if (is_problem && !doctor->has_problem)
        doctor->reason->text = said->text;
    doctor->has_problem |= is_problem;
}

/* ---- settings ---- */

static void add_bad_setting(void *data, const char *line)
{
    doctor_problem(data, "settings",
                   "correct the variable; `rmmshim check` shows what variables mean", "%s", line);
}

unsigned doctor_parse(char *const *environment, struct rs_diagnostics *diagnostics,
                      struct rs_config *config)
{
    char **own = environ;
    unsigned bad;

    environ = (char **)(uintptr_t)environment; /* getenv looks there */
    bad = rs_config_parse(environment, diagnostics, config);
    environ = own;
    return bad;
}

bool doctor_settings(struct doctor *doctor, char *const *environment, bool *asks)
{
    struct rs_diagnostics diagnostics = {
        .write = add_bad_setting, .data = doctor, .doubts_are_errors = true};
    struct rs_config config;
    unsigned bad = doctor_parse(environment, &diagnostics, &config);

    *asks = config.anything_set;
    rs_config_free(&config);
    return bad == 0;
}

enum { NAMES_BYTES = 512 };

/* The word by which a process was started is most often its executable's name, too. */
static void put_names(const struct rs_only_process *process, char *text, size_t room)
{
    size_t at = 0, length;
    const char *executable = rs_only_next_name(process, &at), *name;

    length = (size_t)snprintf(text, room, "%s", executable);
    while (length < room && (name = rs_only_next_name(process, &at)))
        if (strcmp(name, executable) != 0)
            length += (size_t)snprintf(text + length, room - length, ", %s", name);
}

bool doctor_only(struct doctor *doctor, const char *patterns, const struct rs_only_process *process,
                 bool has_arguments)
{
    char names[NAMES_BYTES];

    if (rs_only_serves(patterns, process))
        return true;
    put_names(process, names, sizeof(names));
    doctor->is_unseen = !has_arguments;
    doctor_problem(doctor, "only",
                   "add its name to RMM_ONLY (`rmmshim run --only`), or unset RMM_ONLY",
                   "RMM_ONLY=%s leaves it out%s: its names are %s, and the library is inert in it",
                   patterns, has_arguments ? "" : " unless an argument matches", names);
    return false;
}

/* ---- the driver in the wrong place ---- */

void doctor_driver_first(struct doctor *doctor, const char *path)
{
    doctor_problem(doctor, "preload",
                   "name librmmshim.so first in LD_PRELOAD, or use `rmmshim run`",
                   "%s comes before the library: calls that the program binds to it directly are "
                   "neither served nor limited",
                   path);
}

/* ---- a diagnosis ---- */

static void begin(struct doctor *doctor, const char *kind, const char *subject)
{
    struct rs_node *root = &doctor->document.root;

    rs_document_begin(&doctor->document);
    rs_node_count(root, "schema", 1);
    rs_node_word(root, "kind", kind);
    rs_node_word(root, "subject", subject);
    doctor->verdict = rs_node_word(root, "verdict", "served");
    doctor->reason = rs_node_word(root, "reason", "");
    doctor->findings = rs_node_list(root, "findings");
}

/* As text the verdict is the first line. */
static void judge(struct doctor *doctor)
{
    struct rs_node *root = &doctor->document.root;

    if (!doctor->has_problem) {
        root->line = rs_document_format(&doctor->document, "%s\n", doctor->good);
        return;
    }
    doctor->verdict->text = doctor->is_unseen ? "unknown" : doctor->is_served ? "partly" : "not";
    root->line = doctor->is_unseen   ? "not known: {reason}\n"
                 : doctor->is_served ? "served only in part: {reason}\n"
                                     : "not served: {reason}\n";
}

static int examine(const char *subject, char *const *arguments, bool as_json)
{
    static struct doctor doctor;
    bool is_printed;

    if (!subject) {
        begin(&doctor, "machine", "");
        doctor_machine(&doctor);
    } else if (process_parse(subject)) {
        begin(&doctor, "process", subject);
        doctor_process(&doctor, process_parse(subject));
    } else {
        begin(&doctor, "program", subject);
        doctor_program(&doctor, subject, arguments);
    }
    judge(&doctor);
    is_printed = tool_show(&doctor.document.root, as_json);
    rs_document_release(&doctor.document);
    return doctor.has_problem || !is_printed ? TOOL_FINDING : TOOL_OK;
}

/* ---- the command ---- */

/* Takes what stands before the process or program. */
static bool take_options(char ***arguments, bool *as_json)
{
    static const char *const options[] = {"--json", "--help", NULL};

    for (; **arguments && ***arguments == '-'; ++*arguments) {
        if (strcmp(**arguments, "--") == 0) {
            ++*arguments;
            break;
        }
        if (strcmp(**arguments, "--json") != 0) {
            tool_say_unknown("option", **arguments, options);
            return false;
        }
        *as_json = true;
    }
    return true;
}

/* `--json` may stand last, too; other words behind a program are its own. */
static int run(char **arguments)
{
    const char *subject;
    bool as_json = false;
    size_t count = 0;

    if (!take_options(&arguments, &as_json))
        return TOOL_USAGE;
    subject = *arguments;
    if (!subject)
        return examine(NULL, NULL, as_json);
    if (!*subject) {
        tool_say("the program's name is empty");
        return TOOL_USAGE;
    }
    for (arguments++; arguments[count]; count++)
        ;
    if (count > 0 && strcmp(arguments[count - 1], "--json") == 0) {
        as_json = true;
        arguments[--count] = NULL;
    }
    if (process_parse(subject) && !tool_has_no_more(arguments))
        return TOOL_USAGE;
    return examine(subject, arguments, as_json);
}

const struct tool_command tool_doctor = {
    .name = "doctor",
    .arguments = "[--json] [PID|PROGRAM] [ARGUMENTS...]",
    .summary = "Says whether a process, a program or this machine is served, and why not",
    .run = run,
    .help =
        "The first line says whether rmmshim serves GPU memory and, if not, why.  Then follow its\n"
        "findings, one a line: '!' stands before what keeps memory from being served, and after "
        "'->'\n"
        "the setting or step that would change it.\n\n"
        "  PID      a process that runs: what it has loaded, and which memory no stack serves\n"
        "  PROGRAM  a program before it is run, as it would be started, with arguments or "
        "without:\n"
        "           whether the library can be loaded into it\n"
        "  nothing  this machine: library, driver, devices, MIG, MPS, limits, RMM_ variables\n"
        "  --json   the same as JSON; put it before the program, or last\n\n"
        "A program whose name is a number is given with a slash: ./4711.  A script that is called "
        "python, as\n"
        "pyenv's is, is asked which interpreter it starts.\n\n"
        "exit codes: 0 served, or would be; 1 not, or only in part; 2 wrong usage\n\n"
        "example: rmmshim doctor python3 train.py",
};
