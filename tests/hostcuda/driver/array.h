/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA arrays: the device memory that they take, and their descriptors. The caller holds the lock.
 */
#pragma once

struct hc_array;

/* Forgets an array whose context has ended: its handle is unknown from now on. */
void hc_array_forget(struct hc_array *array);
