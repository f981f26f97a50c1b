/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA arrays: what they hold of the device, and their descriptors. The caller holds the lock. */
#pragma once

struct hc_array;

/* Its context has ended: the handle is unknown from now on. */
void hc_array_forget(struct hc_array *array);
