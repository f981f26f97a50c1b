/* SPDX-License-Identifier: Apache-2.0 */
/* Futex calls that work across processes.  Thread safe; no cancellation points. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* Returns when the word is not `seen`, after a wake, after a signal, or after wait_ns at most. */
void rs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t wait_ns);

/* Wakes all that wait for the word. */
void rs_futex_wake(_Atomic uint32_t *word);
