/* SPDX-License-Identifier: Apache-2.0 */
/* What `rmmshim doctor` found about a machine, a program or a process: findings, of which the first
 * problem is the verdict's reason. */
#pragma once

#include "base/check.h"
#include "base/log.h"
#include "config/config.h"
#include "config/only.h"
#include "report/document.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { DOCTOR_TEXT_BYTES = 2 * PATH_MAX + 512 };

struct doctor {
    const char *good; /* static text: the verdict without a problem */
    bool is_served;   /* problems then say "not wholly" */
    bool is_unseen;   /* a problem keeps from seeing whether it is served */
    bool has_problem;
    struct rs_document document;
    struct rs_node *verdict, *reason, *findings;
};

/* Adds a finding; a problem keeps memory from being served.  `topic` is static text, one word;
 * `step`, the setting or step that would change it, is static too, or NULL. */
void doctor_add(struct doctor *doctor, bool is_problem, const char *topic, const char *step,
                const char *format, ...) RS_PRINTF(5, 6);

#define doctor_note(doctor, ...)    doctor_add(doctor, false, __VA_ARGS__)
#define doctor_problem(doctor, ...) doctor_add(doctor, true, __VA_ARGS__)

/* Parses the RMM_ variables of an environment; what they refer to (%q{NAME}) is its own, too.  The
 * number of bad ones.  rs_config_free is due. */
unsigned doctor_parse(char *const *environment, struct rs_diagnostics *diagnostics,
                      struct rs_config *config);

/* Judges the RMM_ variables of an environment by the library's own parser; each bad one is a
 * problem.  Returns false when one is bad.  *asks is whether they ask for anything. */
bool doctor_settings(struct doctor *doctor, char *const *environment, bool *asks);

/* Judges whether RMM_ONLY, with that value or NULL, leaves the process out: then that is a problem.
 * False then: the library looks at no other variable of such a process.  Of a program whose
 * arguments are not known that is not known either: one may match. */
bool doctor_only(struct doctor *doctor, const char *patterns, const struct rs_only_process *process,
                 bool has_arguments);

/* Tells that the driver comes before the library. */
void doctor_driver_first(struct doctor *doctor, const char *path);

/* Look at a program (a path, or a name in PATH) with its arguments, and at a process. */
void doctor_program(struct doctor *doctor, const char *name, char *const *arguments);
void doctor_process(struct doctor *doctor, int number);

/* True when libcuda.so.1 can be loaded, which a child process tries: one that crashes or hangs is a
 * finding. */
bool driver_can_be_loaded(void);
