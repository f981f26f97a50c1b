/* SPDX-License-Identifier: Apache-2.0 */
/* What the headers of an ELF file say to the dynamic linker: for whom the file is, whether it is
 * linked dynamically, which libraries it needs, and its symbols.  The file may be anything: each
 * offset is read with pread, which answers beyond the end instead of raising a signal. */
#pragma once

#include <elf.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ELF_NAME_BYTES = 256 };

struct elf_file {
    int fd;
    bool is_elf;
    unsigned char class; /* ELFCLASS64 */
    unsigned machine, type;
    bool has_interpreter;       /* the program is linked dynamically */
    char interpreter[PATH_MAX]; /* path of its dynamic linker; "" where it cannot be read */

    /* Of 64-bit files only; zero where the file has no dynamic section. */
    uint64_t program_headers, dynamic, dynamic_bytes; /* offsets in the file, and a size */
    unsigned program_header_count;
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

/* The symbols that the file shows to the dynamic linker, or wants from it. */
struct elf_symbols {
    Elf64_Sym *symbols;
    char *names;
    size_t count, name_bytes;
    uint64_t section; /* of the symbols, in the file */
};

/* False where there are none, or they cannot be read.  elf_free_symbols is due after true. */
bool elf_read_symbols(const struct elf_file *elf, struct elf_symbols *symbols);
void elf_free_symbols(struct elf_symbols *symbols);
const char *elf_symbol_name(const struct elf_symbols *symbols, size_t index);

/* True when the file's code or data refer to the symbol by its name. */
bool elf_refers_to(const struct elf_file *elf, const struct elf_symbols *symbols, size_t index);

/* True when the file has the text somewhere.  At most 64 bytes of text. */
bool elf_contains(const struct elf_file *elf, const char *text);
