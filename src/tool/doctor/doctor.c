/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/doctor/doctor.h"

#include "tool/print.h"
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

/* ---- output ---- */

static const struct doctor_finding *first_problem(const struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->count; i++)
        if (doctor->findings[i].is_problem)
            return &doctor->findings[i];
    return NULL;
}

/* As text the verdict is the first line. */
static void put_verdict(struct rs_node *root, const struct doctor *doctor,
                        const struct doctor_finding *problem)
{
    const char *word = !problem            ? "served"
                       : doctor->is_unseen ? "unknown"
                       : doctor->is_served ? "partly"
                                           : "not";

    root->line = !problem            ? rs_document_format(root->document, "%s\n", doctor->good)
                 : doctor->is_unseen ? "not known: {reason}\n"
                 : doctor->is_served ? "served only in part: {reason}\n"
                                     : "not served: {reason}\n";
    rs_node_count(root, "schema", 1);
    rs_node_word(root, "kind", doctor->kind);
    rs_node_word(root, "subject", doctor->subject);
    rs_node_word(root, "verdict", word);
    rs_node_word(root, "reason", problem ? problem->text : "");
}

static void put_finding(struct rs_node *list, const struct doctor_finding *finding)
{
    struct rs_node *object = rs_node_object(list, NULL);

    object->line = "[{problem?}  !][{problem!}  -] {topic}: {text}[ -> {step}]\n";
    rs_node_word(object, "topic", finding->topic);
    rs_node_flag(object, "problem", finding->is_problem);
    rs_node_word(object, "text", finding->text);
    rs_node_word(object, "step", finding->step ? finding->step : "");
}

int doctor_print(const struct doctor *doctor, bool as_json)
{
    const struct doctor_finding *problem = first_problem(doctor);
    static struct rs_document document;
    struct rs_node *list;
    bool is_printed;

    rs_document_begin(&document);
    put_verdict(&document.root, doctor, problem);
    list = rs_node_list(&document.root, "findings");
    for (size_t i = 0; i < doctor->count; i++)
        put_finding(list, &doctor->findings[i]);
    is_printed = as_json ? print_json(&document.root) : print_text(&document.root);
    rs_document_release(&document);
    return problem || !is_printed ? TOOL_FINDING : TOOL_OK;
}
