/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/job_layout.h"

#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc takes it for granted; qemu-user has none. */
bool rs_job_limit_can_be_kept(void)
{
    void *list;
    size_t length;

    return syscall(SYS_get_robust_list, 0, &list, &length) == 0 || errno != ENOSYS;
}

int rs_job_limit_init(struct rs_job_limit *job, struct rs_size limit)
{
    pthread_mutexattr_t robust;
    int failed;

    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    failed = pthread_mutex_init(&job->mutex, &robust);
    pthread_mutexattr_destroy(&robust);
    if (failed || !rs_job_limit_can_be_kept())
        return -ENOTSUP;
    rs_process_boot(job->boot);
    atomic_store(&job->home, rs_process_namespace());
    job->limit = limit;
    snprintf(job->layout, sizeof(job->layout), "%s", RS_JOB_LIMIT_LAYOUT); /* last */
    return 0;
}
