/* SPDX-License-Identifier: Apache-2.0 */
/* Object files, and what the dynamic linker makes of them. */
#pragma once

#include <elf.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- one file ----
 *
 * What its headers say to the dynamic linker: for whom the file is, whether it is linked
 * dynamically, and which libraries it needs.  The file may be anything: each offset is read with
 * pread, which answers beyond the end instead of raising a signal. */

enum { ELF_NAME_BYTES = 256 };

struct elf_file {
    int fd;
    bool is_elf;
    unsigned char class; /* ELFCLASS64 */
    unsigned machine, type;
    bool has_interpreter;       /* the program is linked dynamically */
    char interpreter[PATH_MAX]; /* path of its dynamic linker; "" where it cannot be read */

    /* Of 64-bit files only; zero where the file has no dynamic section. */
    uint64_t program_headers, sections, dynamic,
        dynamic_bytes; /* offsets in the file, and a size */
    unsigned program_header_count, section_count, section_names;
};

/* Opens a file and reads its headers.  False when it cannot be opened; a file that is no ELF file
 * has is_elf false.  After true elf_close is due. */
bool elf_open(const char *path, struct elf_file *elf);
void elf_close(struct elf_file *elf);

/* True for a program that is linked statically, as a position-independent one (static-pie) too. */
bool elf_is_static(const struct elf_file *elf);

/* Gives the next library that the file needs (DT_NEEDED); *at is 0 at first.  False after the
 * last. */
bool elf_next_needed(const struct elf_file *elf, size_t *at, char name[ELF_NAME_BYTES]);

/* The address that the file gives to the byte at that offset; the offset where it cannot be read.
 */
uintptr_t elf_address_of(const char *path, uint64_t offset);

/* True when the file tells source lines: without these addr2line reads a large library for nothing.
 */
bool elf_has_lines(const char *path);

/* True when the file has the text somewhere.  At most 64 bytes of text. */
bool elf_contains(const struct elf_file *elf, const char *text);

/* The name of a function of C++ as its source has it, which is to be freed; NULL for another name,
 * or where libstdc++ is not installed. */
char *elf_demangle(const char *name);

/* ---- the order of loading ----
 *
 * The objects that the dynamic linker loads for a program, in the order in which it looks symbols
 * up in them.  The linker itself is asked (what `ldd` does): it maps the objects and runs nothing
 * of them. */

struct load_order {
    char **paths;          /* without the program itself, which is the first object */
    size_t count, missing; /* objects that are loaded, and that are not found */
};

/* Asks for the program when it is started with that environment.  False where the linker cannot be
 * asked, or loads nothing.  load_order_free is due in any case. */
bool load_order_read(const char *program, char *const *environment, struct load_order *order);
void load_order_add(struct load_order *order, const char *path); /* copies it */
void load_order_free(struct load_order *order);

/* The index of the first object whose base name begins with the text; `count` when there is none.
 */
size_t load_order_find(const struct load_order *order, const char *begin);

/* ---- variables with names of functions ----
 *
 * Objects may have variables with names of functions that the library exports.  The dynamic linker
 * puts the library's functions in their place, as it comes first: what such an object stores there,
 * it would write into code. */

enum { NAMESAKE_BYTES = 200 };

struct namesake {
    unsigned count;             /* of such variables */
    char names[NAMESAKE_BYTES]; /* of the first ones */
};

/* Looks at the object at `path`, for the library at `library`.  True when it has such variables,
 * and refers to them in a way that the linker redirects. */
bool namesake_look(const char *library, const char *path, struct namesake *found);
