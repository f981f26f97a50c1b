/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with what it wants included first. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
