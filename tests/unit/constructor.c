/* SPDX-License-Identifier: Apache-2.0 */
/* A module for `trace_object_walk`: its constructor, which the loader calls under its lock, calls
 * the program. */

void in_constructor(void);

/* An address in the module. */
__attribute__((visibility("default"))) const char constructor_address = 0;

__attribute__((constructor)) static void construct(void)
{
    in_constructor();
}
