/* SPDX-License-Identifier: Apache-2.0 */
/* Reads object files, and finds out what the dynamic linker does with them. */
#pragma once

#include <elf.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- one file ----
 *
 * What a file's headers tell the dynamic linker: the processor, whether the file is linked
 * dynamically, and which libraries it needs.  The file may be of any kind, so everything is read
 * with pread: beyond the end it returns fewer bytes, where a mapping would raise a signal. */

enum { ELF_NAME_BYTES = 256 };

struct elf_file {
    int fd;
    bool is_elf;
    unsigned char class; /* ELFCLASS32 or ELFCLASS64 */
    unsigned machine, type;
    bool has_interpreter;       /* the program is linked dynamically; read only for 64-bit files */
    char interpreter[PATH_MAX]; /* the path of its dynamic linker; "" if it cannot be read */

    /* Read only for 64-bit files.  `dynamic` and `dynamic_bytes` are 0 if the file has no dynamic
     * section. */
    uint64_t program_headers, sections, dynamic,
        dynamic_bytes; /* offsets in the file, and a size */
    unsigned program_header_count, section_count, section_names;
};

/* Opens a file and reads its headers.  Returns false when it cannot be opened; for a file that is
 * no ELF file is_elf is false.  After true the caller calls elf_close. */
bool elf_open(const char *path, struct elf_file *elf);
void elf_close(struct elf_file *elf);

/* True for a program that is linked statically, including position-independent ones (static-pie).
 */
bool elf_is_static(const struct elf_file *elf);

/* Writes the name of the next library that the file needs (DT_NEEDED) to `name`; *at is 0 before
 * the first.  Returns false after the last one. */
bool elf_next_needed(const struct elf_file *elf, size_t *at, char name[ELF_NAME_BYTES]);

/* Returns the address that the file assigns to the byte at that offset; the offset itself if the
 * file cannot be read, or does not load that byte. */
uintptr_t elf_address_of(const char *path, uint64_t offset);

/* True when the file has source lines.  Without them addr2line would read a large library in vain.
 */
bool elf_has_lines(const char *path);

/* True when the file contains the text, which has at most 64 bytes. */
bool elf_contains(const struct elf_file *elf, const char *text);

/* Returns the name of a C++ function as in its source, which the caller frees; NULL for any other
 * name, or if libstdc++ is not installed. */
char *elf_demangle(const char *name);

/* ---- the order of loading ----
 *
 * The objects that the dynamic linker loads for a program, in the order in which it looks symbols
 * up in them.  The linker itself is asked, as `ldd` does: it maps the objects and runs none of
 * their code. */

struct load_order {
    char **paths; /* the objects, without the program itself, which comes before all of them */
    size_t count, missing; /* the number of paths, and of objects that are not found */
};

/* Asks the dynamic linker which objects it loads when the program is started with the LD_PRELOAD
 * and LD_LIBRARY_PATH of that environment.  Returns false if it cannot be asked, or loads nothing.
 * The caller calls load_order_free in any case. */
bool load_order_read(const char *program, char *const *environment, struct load_order *order);
void load_order_add(struct load_order *order, const char *path); /* copies the path */
void load_order_free(struct load_order *order);

/* Returns the index of the first object whose base name begins with the text; order->count if there
 * is none. */
size_t load_order_find(const struct load_order *order, const char *begin);

/* ---- variables with names of functions ----
 *
 * An object may have a variable with the name of a function that the library exports.  The library
 * comes first, so the dynamic linker binds the object's references to the library's function: what
 * the object stores in its variable would be written into code. */

enum { NAMESAKE_BYTES = 200 };

struct namesake {
    unsigned count;             /* the number of such variables */
    char names[NAMESAKE_BYTES]; /* the names of the first ones */
};

/* Finds the variables of the object at `path` that are named like functions (cu...) of the library
 * at `library`, and that the object refers to in a way that the linker redirects.  True: found. */
bool namesake_look(const char *library, const char *path, struct namesake *found);
