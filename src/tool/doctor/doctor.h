/* SPDX-License-Identifier: Apache-2.0 */
/* What `rmmshim doctor` finds about a machine, a program or a process: a list of findings.  The
 * verdict gives the first problem among them as its reason. */
#pragma once

#include "base/check.h"
#include "base/log.h"
#include "config/config.h"
#include "config/program_filter.h"
#include "report/document.h"
#include "tool/objects.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { DOCTOR_TEXT_BYTES = 2 * PATH_MAX + 512 };

struct doctor {
    const char *good; /* static text: the verdict if there is no problem */
    bool is_served; /* memory is served; if there are problems, the verdict then is "served only in
                       part" */
    bool is_unseen; /* because of a problem it cannot be seen whether memory is served */
    bool has_problem;
    struct rs_document document;
    struct rs_node *verdict, *reason, *findings;
};

/* Adds a finding. is_problem: what was found keeps memory from being served. `topic` is one word;
 * `step` is what the user can do about it, or NULL. Both are static texts. */
void doctor_add(struct doctor *doctor, bool is_problem, const char *topic, const char *step,
                const char *format, ...) RS_PRINTF(5, 6);

#define doctor_note(doctor, ...)    doctor_add(doctor, false, __VA_ARGS__)
#define doctor_problem(doctor, ...) doctor_add(doctor, true, __VA_ARGS__)

/* Parses the RMM_ variables of an environment. Variables that they refer to (%q{NAME}) are looked
 * up in the same environment. Returns the number of bad ones. The caller calls rs_config_free. */
unsigned doctor_parse(char *const *environment, struct rs_diagnostics *diagnostics,
                      struct rs_config *config);

/* Judges the RMM_ variables of an environment by the library's own parser; each bad one is a
 * problem. Returns false when one is bad. *asks: they ask for a pool, a limit or a report. */
bool doctor_settings(struct doctor *doctor, char *const *environment, bool *asks);

/* Judges RMM_ONLY with the value `patterns` (NULL: not set). If no pattern matches the process,
 * that is a problem and the result is false: the library reads no other variable in such a process.
 * Without the arguments (has_arguments) the finding says that a pattern may match one of them. */
bool doctor_program_filter(struct doctor *doctor, const char *patterns,
                           const struct rs_program_names *process, bool has_arguments);

/* Adds a problem if the driver comes before the library in the order of loading. */
void doctor_driver_first(struct doctor *doctor, const struct load_order *order);

/* Adds the finding that functions of the library take the place of variables of the file at `path`.
 * `when` is "" or the condition, such as "if that file is loaded later, ". */
void doctor_namesake(struct doctor *doctor, bool is_problem, const char *path,
                     const struct namesake *found, const char *when);

/* Examine a program (a path, or a name in PATH) with its arguments, or a process. */
void doctor_program(struct doctor *doctor, const char *name, char *const *arguments);
void doctor_process(struct doctor *doctor, int number);

/* True when libcuda.so.1 can be loaded.  A child process tries that, so that a libcuda that crashes
 * or hangs becomes a finding. */
bool driver_can_be_loaded(void);
