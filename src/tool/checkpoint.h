/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's checkpoint of another process (cuCheckpointProcess*, CUDA 12.8 and newer): its
 * device memory moves to the host and comes back at the same addresses.  Any process of the same
 * user that uses CUDA can be paused, served by rmmshim or not (tests/conformance/MEASURED.md). */
#pragma once

/* Takes the number of the one process that the arguments name; 0 after saying what is wrong. */
int checkpoint_parse(char **arguments);

/* Each returns an exit code and prints what became of the process: TOOL_OK also where there was
 * nothing to do, TOOL_LATE when its work on the GPU did not end within 10 s, which changes nothing.
 */
int checkpoint_pause(int number);
int checkpoint_resume(int number);
