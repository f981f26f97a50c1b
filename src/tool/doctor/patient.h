/* SPDX-License-Identifier: Apache-2.0 */
/* The process that is looked at, as /proc shows it. */
#pragma once

#include "tool/doctor/doctor.h"
#include "tool/doctor/maps.h"

struct patient {
    struct doctor *doctor;
    int number, directory;  /* of the process in /proc */
    char *environment_text; /* what the process was started with; NULL: unreadable */
    char **environment;     /* the same as an array like environ, or NULL */
    struct doctor_maps maps;
};

/* Reads environment and libraries, and notes these.  doctor, number and directory are set. */
void patient_begin(struct patient *patient);
void patient_end(struct patient *patient);

/* The value of a variable of the process; NULL: not set, or not readable. */
const char *patient_variable(const struct patient *patient, const char *name);

/* True when the kernel started it with more rights than who started it has (AT_SECURE). */
bool patient_is_secure(const struct patient *patient);

/* The number behind "\nName:" in /proc/PID/status; 0: none. */
int patient_status_number(const struct patient *patient, const char *name);

/* The soft limit on the size of files; RS_PUBLISHED_BYTES where it is not known or not set. */
unsigned long long patient_file_size_limit(const struct patient *patient);

/* The path of the executable of the process whose directory in /proc that is. */
bool patient_executable(int directory, char path[PATH_MAX]);
