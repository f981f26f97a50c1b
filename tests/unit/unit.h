/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka.h, with the headers that must be included before it. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
