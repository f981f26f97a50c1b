/* SPDX-License-Identifier: Apache-2.0 */
/* The one lock of the driver. It protects every structure; work on the device runs without it. */
#pragma once

#include <pthread.h>

extern pthread_mutex_t hc_mutex;

static inline void hc_lock(void)
{
    pthread_mutex_lock(&hc_mutex);
}

/* Notes the most that was in use of each device (device.c). */
void hc_device_note_peaks(void);

static inline void hc_unlock(void)
{
    hc_device_note_peaks();
    pthread_mutex_unlock(&hc_mutex);
}

static inline void hc_unlock_at(int *unused)
{
    (void)unused;
    hc_unlock();
}

/* Holds the lock to the end of the block. */
#define HC_LOCKED() __attribute__((cleanup(hc_unlock_at), unused)) int hc_locked_ = (hc_lock(), 0)
