/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/account.h"

static void raise_peak(_Atomic size_t *peak, size_t value)
{
    size_t seen = atomic_load_explicit(peak, memory_order_relaxed);

    while (value > seen && !atomic_compare_exchange_weak_explicit(
                               peak, &seen, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

void rs_account_take(struct rs_account *account, size_t bytes, bool on_device)
{
    for (; account; account = account->device) {
        atomic_fetch_add_explicit(&account->driver_allocations, 1, memory_order_relaxed);
        if (on_device)
            raise_peak(&account->peak_bytes,
                       bytes + atomic_fetch_add_explicit(&account->held_bytes, bytes,
                                                         memory_order_relaxed));
        else
            atomic_fetch_add_explicit(&account->held_elsewhere_bytes, bytes, memory_order_relaxed);
    }
}

void rs_account_give(struct rs_account *account, size_t bytes, bool on_device)
{
    for (; account; account = account->device) {
        atomic_fetch_add_explicit(&account->driver_frees, 1, memory_order_relaxed);
        atomic_fetch_sub_explicit(on_device ? &account->held_bytes : &account->held_elsewhere_bytes,
                                  bytes, memory_order_relaxed);
    }
}

void rs_account_lose(struct rs_account *account)
{
    size_t held = atomic_exchange_explicit(&account->held_bytes, 0, memory_order_relaxed);
    size_t elsewhere =
        atomic_exchange_explicit(&account->held_elsewhere_bytes, 0, memory_order_relaxed);

    if (!account->device)
        return;
    atomic_fetch_sub_explicit(&account->device->held_bytes, held, memory_order_relaxed);
    atomic_fetch_sub_explicit(&account->device->held_elsewhere_bytes, elsewhere,
                              memory_order_relaxed);
}
