/* SPDX-License-Identifier: Apache-2.0 */
/* The list of leaves whose memory the driver did not take back when their context ended. */
#include "resource/unfinished.h"

#include "base/lock.h"

#include <stddef.h>

static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_UNFINISHED); /* protects the list */
RS_RESET_IN_CHILD(resource_unfinished, lock);
static struct rs_unfinished *first;

void rs_unfinished_add(struct rs_unfinished *unfinished,
                       bool (*finish)(struct rs_unfinished *unfinished))
{
    rs_mutex_lock(&lock);
    unfinished->finish = finish;
    unfinished->next = first;
    first = unfinished;
    rs_mutex_unlock(&lock);
}

void rs_unfinished_remove(struct rs_unfinished *unfinished)
{
    rs_mutex_lock(&lock);
    for (struct rs_unfinished **at = &first; *at; at = &(*at)->next) {
        if (*at == unfinished) {
            *at = unfinished->next;
            break;
        }
    }
    rs_mutex_unlock(&lock);
}

void rs_unfinished_retry(void)
{
    struct rs_unfinished **at = &first;

    rs_mutex_lock(&lock);
    while (*at) {
        struct rs_unfinished *unfinished = *at;
        if (unfinished->finish(unfinished))
            *at = unfinished->next;
        else
            at = &unfinished->next;
    }
    rs_mutex_unlock(&lock);
}
