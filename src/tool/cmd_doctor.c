/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim doctor: says whether memory is served, and if not why. */
#include "tool/doctor/doctor.h"
#include "tool/process.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int examine(const char *subject, char *const *arguments, bool as_json)
{
    struct doctor *doctor = calloc(1, sizeof(*doctor));
    int code;

    if (!doctor) {
        tool_say("out of memory");
        return TOOL_FINDING;
    }
    doctor->subject = subject ? subject : "";
    if (!subject) {
        doctor->kind = "machine";
        doctor_machine(doctor);
    } else if (process_parse(subject)) {
        doctor->kind = "process";
        doctor_process(doctor, process_parse(subject));
    } else {
        doctor->kind = "program";
        doctor_program(doctor, subject, arguments);
    }
    code = doctor_print(doctor, as_json);
    doctor_release(doctor);
    free(doctor);
    return code;
}

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
    if (count > 0 && process_parse(subject)) {
        tool_say("unexpected argument '%s'", *arguments);
        return TOOL_USAGE;
    }
    return examine(subject, arguments, as_json);
}

static void help(void)
{
    puts(
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
        "example: rmmshim doctor python3 train.py");
}

const struct tool_command tool_doctor = {
    .name = "doctor",
    .arguments = "[--json] [PID|PROGRAM] [ARGUMENTS...]",
    .summary = "Says whether a process, a program or this machine is served, and why not",
    .run = run,
    .help = help,
};
