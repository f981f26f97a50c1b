/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a device's live blocks that `rmmshim leaks` reads (shared/commands.h): lines in
 * published memory.  Addresses of code are given as they are: the command names them, as it may
 * read files and take its time.
 *
 *   site KIND BYTES BLOCKS ADDRESS...      of a kind that is tracked; addresses in hexadecimal
 *   line TEXT                              a Python frame of that site
 *   library KIND BYTES BLOCKS NAME         of any other kind; "?" where it is not known
 *   size BYTES BLOCKS SMALLEST LARGEST     a part of that library's
 *   more KIND BYTES BLOCKS                 what else is live
 *   end                                    is last; without it the list was cut off
 *
 * KIND is a number (enum rs_kind). */
#pragma once

#include <stdint.h>

enum { RS_LIVE_LIST_BYTES = 1 << 20 };

/* Makes the list anew.  Returns 0 and the place of the text in the published file, or -errno:
 * -EBUSY while another thread makes one, -ENOMEM where nothing is published or there is no room.
 * Makes no driver call, does not use malloc, and waits for no lock that is held long. */
int rs_live_list(int device, uint64_t *offset, uint64_t *length_bytes);
