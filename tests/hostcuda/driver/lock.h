/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's only lock. It protects every structure; device work runs without it. */
#pragma once

#include <pthread.h>

extern pthread_mutex_t hc_mutex;

static inline void hc_lock(void)
{
    pthread_mutex_lock(&hc_mutex);
}

/* Updates the peak of each device's used bytes (device.c). */
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
