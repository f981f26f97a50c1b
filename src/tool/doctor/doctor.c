/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/doctor/doctor.h"

#include "report/plain.h"
#include "tool/json.h"
#include "tool/tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- findings ---- */

static void add(struct doctor *doctor, bool is_problem, const char *topic, const char *step,
                const char *format, va_list arguments) RS_PRINTF(5, 0);

static void add(struct doctor *doctor, bool is_problem, const char *topic, const char *step,
                const char *format, va_list arguments)
{
    struct doctor_finding *finding = &doctor->findings[doctor->count];
    char text[DOCTOR_TEXT_BYTES];

    if (doctor->count == DOCTOR_FINDINGS_MAX)
        return;
    vsnprintf(text, sizeof(text), format, arguments);
    rs_plain_make(text); /* names of programs and files are others' text */
    *finding = (struct doctor_finding){topic, step, strdup(text), is_problem};
    doctor->count += finding->text != NULL;
}

void doctor_note(struct doctor *doctor, const char *topic, const char *step, const char *format,
                 ...)
{
    va_list arguments;

    va_start(arguments, format);
    add(doctor, false, topic, step, format, arguments);
    va_end(arguments);
}

void doctor_problem(struct doctor *doctor, const char *topic, const char *step, const char *format,
                    ...)
{
    va_list arguments;

    va_start(arguments, format);
    add(doctor, true, topic, step, format, arguments);
    va_end(arguments);
}

void doctor_release(struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->count; i++)
        free(doctor->findings[i].text);
    doctor->count = 0;
}

/* ---- settings ---- */

static void add_bad_setting(void *data, const char *line)
{
    doctor_problem(data, "settings", "mend the variable; `rmmshim check` shows what variables mean",
                   "%s", line);
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
    doctor_problem(doctor, "only", "add its name to RMM_ONLY (`rmmshim run --only`), or unset that",
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

/* ---- output ---- */

static const struct doctor_finding *first_problem(const struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->count; i++)
        if (doctor->findings[i].is_problem)
            return &doctor->findings[i];
    return NULL;
}

static const char *bad_verdict(const struct doctor *doctor)
{
    if (doctor->is_unseen)
        return "not known";
    return doctor->is_served ? "served, but not wholly" : "not served";
}

static void put_text(const struct doctor *doctor, const struct doctor_finding *problem)
{
    if (problem)
        printf("%s: %s\n", bad_verdict(doctor), problem->text);
    else
        puts(doctor->good);
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        printf("  %s %s: %s%s%s\n", finding->is_problem ? "!" : "-", finding->topic, finding->text,
               finding->step ? " -> " : "", finding->step ? finding->step : "");
    }
}

static void put_json_member(const char *name, const char *text)
{
    printf("\"%s\": ", name);
    json_put_text(text);
}

static void put_json_finding(const struct doctor_finding *finding)
{
    putchar('{');
    put_json_member("topic", finding->topic);
    printf(", \"problem\": %s, ", finding->is_problem ? "true" : "false");
    put_json_member("text", finding->text);
    fputs(", ", stdout);
    put_json_member("step", finding->step ? finding->step : "");
    putchar('}');
}

static void put_json(const struct doctor *doctor, const struct doctor_finding *problem)
{
    char subject[PATH_MAX];

    snprintf(subject, sizeof(subject), "%s", doctor->subject);
    rs_plain_make(subject);
    fputs("{\"schema\": 1, ", stdout);
    put_json_member("kind", doctor->kind);
    fputs(", ", stdout);
    put_json_member("subject", subject);
    fputs(", ", stdout);
    put_json_member("verdict", !problem            ? "served"
                               : doctor->is_unseen ? "unknown"
                               : doctor->is_served ? "partly"
                                                   : "not");
    fputs(", ", stdout);
    put_json_member("reason", problem ? problem->text : "");
    fputs(", \"findings\": [", stdout);
    for (size_t i = 0; i < doctor->count; i++) {
        fputs(i ? ",\n  " : "\n  ", stdout);
        put_json_finding(&doctor->findings[i]);
    }
    puts("\n]}");
}

int doctor_print(const struct doctor *doctor, bool as_json)
{
    const struct doctor_finding *problem = first_problem(doctor);

    if (as_json)
        put_json(doctor, problem);
    else
        put_text(doctor, problem);
    return problem ? TOOL_FINDING : TOOL_OK;
}
