/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/hide.h"

#include "driver/config.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct symbols {
    ElfW(Sym) * table;
    const char *names;
    const uint32_t *gnu_hash;
};

bool hc_entry_is_offered(const struct hc_entry *entry)
{
    return entry->since <= hc_config.driver_version && !hc_config_withholds(entry->symbol) &&
           !hc_config_withholds(entry->base);
}

/* A symbol is offered if one of its rows is. */
static bool is_offered(const char *symbol)
{
    for (unsigned i = 0; i < hc_entry_count; i++)
        if (!strcmp(hc_entries[i].symbol, symbol) && hc_entry_is_offered(&hc_entries[i]))
            return true;
    return false;
}

static int find_symbols(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    struct symbols *symbols = out;
    uintptr_t own = (uintptr_t)hc_entries;
    bool is_own = false;
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD && own - begin < header->p_memsz)
            is_own = true;
        if (header->p_type == PT_DYNAMIC)
            dynamic = (const void *)begin;
    }
    if (!is_own || !dynamic)
        return 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        void *address = (void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_SYMTAB)
            symbols->table = address;
        else if (dynamic->d_tag == DT_STRTAB)
            symbols->names = address;
        else if (dynamic->d_tag == DT_GNU_HASH)
            symbols->gnu_hash = address;
    }
    return 1;
}

/* The GNU hash table holds all exports, at the end of the symbol table: from its first index to the
 * end of the last chain. */
static uint32_t symbol_end(const struct symbols *symbols)
{
    const uint32_t *hash = symbols->gnu_hash;
    uint32_t bucket_count = hash[0], first = hash[1], bloom_words = hash[2];
    const uint32_t *buckets = hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chains = buckets + bucket_count;
    uint32_t last = 0;
    for (uint32_t i = 0; i < bucket_count; i++)
        last = buckets[i] > last ? buckets[i] : last;
    if (last < first)
        return first;
    while (!(chains[last - first] & 1))
        last++;
    return last + 1;
}

static void make_writable(void *begin, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)begin / page * page;
    uintptr_t to = ((uintptr_t)begin + bytes + page - 1) / page * page;
    mprotect((void *)from, to - from, PROT_READ | PROT_WRITE);
}

static void hide(struct symbols *symbols, uint32_t first, uint32_t end, const char *name)
{
    for (uint32_t i = first; i < end; i++) {
        ElfW(Sym) *symbol = &symbols->table[i];
        if (strcmp(symbols->names + symbol->st_name, name))
            continue;
        symbol->st_shndx = SHN_UNDEF;
        symbol->st_value = 0;
    }
}

void hc_hide_exports(void)
{
    struct symbols symbols = {0};
    dl_iterate_phdr(find_symbols, &symbols);
    if (!symbols.table || !symbols.names || !symbols.gnu_hash)
        return;
    uint32_t first = symbols.gnu_hash[1], end = symbol_end(&symbols);
    make_writable(symbols.table + first, (end - first) * sizeof(*symbols.table));
    for (unsigned i = 0; i < hc_entry_count; i++)
        if (!hc_entry_is_offered(&hc_entries[i]) && !is_offered(hc_entries[i].symbol))
            hide(&symbols, first, end, hc_entries[i].symbol);
}
