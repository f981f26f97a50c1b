/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* While paused, no call fails, of the C library or of the driver, and none is counted. */
__attribute__((visibility("default"))) void failing_pause(int pause);
