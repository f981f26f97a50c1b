/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `rmmshim run`: those that set the library's variables, and those that are its own.
 */
#pragma once

#include "base/size.h"

#include <stdbool.h>

/* Its own options. */
struct run_options {
    bool becomes;          /* --exec */
    bool is_quiet;         /* --quiet */
    bool fails_on_leak;    /* --fail-on-leak */
    bool finds_min;        /* --find-min */
    bool has_fail_over;    /* --fail-over was given */
    struct rs_size over;   /* --fail-over, when given */
    const char *over_text; /* as the user wrote it */
    const char *profile;   /* --profile: a name or a file; NULL: none */
    const char *json;      /* --json: a path, "-" for stderr; NULL: none */
};

/* True for a word that is an option of `run`, with a value behind '=' or not. */
bool run_options_has(const char *word);

/* Takes the option at *arguments, which moves to the last word that belongs to it: sets *options,
 * or the option's variable in the environment.  False after saying what is wrong. */
bool run_options_take(char ***arguments, struct run_options *options);

/* Checks options and variables that are good alone and not together.  False after saying what is
 * wrong. */
bool run_options_agree(const struct run_options *options);

/* Print the help about the options that are used most, and about all. */
void run_options_print_help(void);
void run_options_print_all_help(void);
