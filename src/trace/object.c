/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/object.h"

#include "base/file.h"
#include "base/hash_table.h"
#include "base/lock.h"
#include "driver/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { NAME_BYTES = 64 };

struct object {
    unsigned long long identity; /* what identity_of returns for the object's path */
    uintptr_t base;              /* where the object was loaded */
    char name[NAME_BYTES];
    /* The lowest and the highest address in the object that rs_object_of was asked about. */
    _Atomic uintptr_t lowest, highest;
    _Atomic bool is_replaced;
};

/* Objects are entered under the lock and never removed. An object is complete before object_count
 * includes it, so readers take no lock. */
static struct object objects[RS_OBJECTS_MAX];
static _Atomic unsigned object_count;
static struct rs_mutex table_lock = RS_MUTEX_INIT(RS_RANK_TABLE);
RS_RESET_IN_CHILD(trace_object, table_lock);

/* ---- the loader's records ---- */

/* Returns the identity of an object, a hash of its file name. The address of an object, or of the
 * loader's record of it, would not identify it, since the loader may give both to another object
 * after the first is unloaded. */
static unsigned long long identity_of(const char *path)
{
    return rs_hash_bytes(path, strlen(path)) | 1;
}

/* The file from which an object was loaded, and the place to which it was. */
struct origin {
    const char *path; /* belongs to the loader, and is valid while the object is loaded */
    uintptr_t base;
};

struct search {
    uintptr_t address;
    struct origin *origin;
};

static int look_into(struct dl_phdr_info *info, size_t size, void *data)
{
    const struct search *search = data;

    (void)size;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && search->address - begin < segment->p_memsz) {
            *search->origin = (struct origin){info->dlpi_name, info->dlpi_addr};
            return 1;
        }
    }
    return 0;
}

/* Finds the object by walking the loader's list, for glibc older than 2.35. dladdr1 would take the
 * lock under which constructors run, and a constructor may wait for this thread. dladdr1 also
 * searches a table of symbols (150 us in a large library). */
static bool find_by_walk(const void *address, struct origin *origin)
{
    struct search search = {(uintptr_t)address, origin};

    return dl_iterate_phdr(look_into, &search) != 0;
}

#if __GLIBC_PREREQ(2, 35)
static bool find_origin(const void *address, struct origin *origin)
{
    /* _dl_find_object is looked up at run time, since the library may run with an older glibc,
     * which does not have it. */
    static _Atomic(void *) found;
    void *symbol = atomic_load_explicit(&found, memory_order_relaxed);
    struct dl_find_object result;
    __typeof__(_dl_find_object) *find;

    if (!symbol) {
        symbol = rs_real_dlsym()(RTLD_DEFAULT, "_dl_find_object");
        atomic_store_explicit(&found, symbol, memory_order_relaxed);
    }
    if (!symbol)
        return find_by_walk(address, origin);
    memcpy(&find, &symbol, sizeof(find));
    if (find((void *)(uintptr_t)address, &result) != 0)
        return false;
    *origin = (struct origin){result.dlfo_link_map->l_name, result.dlfo_link_map->l_addr};
    return true;
}
#else
static bool find_origin(const void *address, struct origin *origin)
{
    return find_by_walk(address, origin);
}
#endif

unsigned long long rs_object_identity(const void *address)
{
    struct origin origin;

    return find_origin(address, &origin) ? identity_of(origin.path) : 0;
}

bool rs_object_origin(const void *address, const char **path, uintptr_t *base)
{
    struct origin origin;

    if (!find_origin(address, &origin))
        return false;
    *path = origin.path ? origin.path : "";
    *base = origin.base;
    return true;
}

/* ---- the table ---- */

/* Finds an object by its identity and its place.  The same file loaded elsewhere counts as another
 * object, so that one object's addresses form one range. */
static unsigned find_object(unsigned long long identity, uintptr_t base)
{
    unsigned count = atomic_load_explicit(&object_count, memory_order_acquire);

    for (unsigned i = 0; i < count; i++)
        if (objects[i].identity == identity && objects[i].base == base &&
            !atomic_load_explicit(&objects[i].is_replaced, memory_order_relaxed))
            return i + 1;
    return 0;
}

/* Returns the name of an object. The loader's path of the program itself is empty, so its own short
 * name is taken. */
static const char *name_of(const char *path)
{
    return *path ? rs_file_base_name(path) : program_invocation_short_name;
}

static unsigned enter_object(const struct origin *origin, unsigned long long identity,
                             const void *address)
{
    unsigned number, count;

    rs_mutex_lock(&table_lock);
    number = find_object(identity, origin->base); /* another thread may have entered it first */
    count = atomic_load_explicit(&object_count, memory_order_relaxed);
    RS_ASSERT(count <= RS_OBJECTS_MAX && number <= count);
    if (!number && count < RS_OBJECTS_MAX) {
        struct object *object = &objects[count];
        object->identity = identity;
        object->base = origin->base;
        snprintf(object->name, sizeof(object->name), "%s", name_of(origin->path));
        atomic_store_explicit(&object->lowest, (uintptr_t)address, memory_order_relaxed);
        atomic_store_explicit(&object->highest, (uintptr_t)address, memory_order_relaxed);
        number = count + 1;
        atomic_store_explicit(&object_count, number, memory_order_release);
    }
    rs_mutex_unlock(&table_lock);
    return number;
}

static void widen(struct object *object, uintptr_t address)
{
    uintptr_t lowest = atomic_load_explicit(&object->lowest, memory_order_relaxed);
    uintptr_t highest = atomic_load_explicit(&object->highest, memory_order_relaxed);

    while (address < lowest && !atomic_compare_exchange_weak(&object->lowest, &lowest, address)) {
    }
    while (address > highest &&
           !atomic_compare_exchange_weak(&object->highest, &highest, address)) {
    }
}

unsigned rs_object_of(const void *address)
{
    unsigned long long identity;
    struct origin origin;
    unsigned number;

    if (!find_origin(address, &origin))
        return 0;
    identity = identity_of(origin.path);
    number = find_object(identity, origin.base);
    if (number) {
        widen(&objects[number - 1], (uintptr_t)address);
        return number;
    }
    number = enter_object(&origin, identity, address);
    if (number)
        rs_object_review();
    return number;
}

/* ---- replaced objects ---- */

static void find_replaced(unsigned long long identity, uintptr_t base, uintptr_t begin,
                          uintptr_t end)
{
    unsigned count = atomic_load_explicit(&object_count, memory_order_acquire);

    for (unsigned i = 0; i < count; i++) {
        struct object *object = &objects[i];
        if (atomic_load_explicit(&object->lowest, memory_order_relaxed) < end &&
            atomic_load_explicit(&object->highest, memory_order_relaxed) >= begin &&
            (object->identity != identity || object->base != base))
            atomic_store_explicit(&object->is_replaced, true, memory_order_relaxed);
    }
}

static int look_at_loaded(struct dl_phdr_info *info, size_t size, void *data)
{
    uintptr_t begin = UINTPTR_MAX, end = 0;

    (void)size;
    (void)data;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t at = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        begin = at < begin ? at : begin;
        end = at + segment->p_memsz > end ? at + segment->p_memsz : end;
    }
    find_replaced(identity_of(info->dlpi_name), info->dlpi_addr, begin, end);
    return 0;
}

void rs_object_review(void)
{
    (void)dl_iterate_phdr(look_at_loaded, NULL);
}

const char *rs_object_name(unsigned number)
{
    RS_ASSERT(number <= atomic_load_explicit(&object_count, memory_order_acquire));
    if (number == 0 || atomic_load_explicit(&objects[number - 1].is_replaced, memory_order_relaxed))
        return NULL;
    return objects[number - 1].name;
}

/* ---- callers ---- */

/* A cached caller in one word, which readers always see whole; 0: empty. The lower 48 bits are the
 * address (the kernel places every object below 2^48), and the upper bits are the object's number.
 * A set of callers is one cache line. */
typedef _Atomic uint64_t caller;

enum { SETS = 128, WAYS = RS_CACHE_LINE / sizeof(caller), ADDRESS_BITS = 48 };

static const uint64_t address_part = ((uint64_t)1 << ADDRESS_BITS) - 1;

_Static_assert(RS_OBJECTS_MAX < 1 << (64 - ADDRESS_BITS), "a number fits above an address");

static _Alignas(RS_CACHE_LINE) caller callers[SETS][WAYS];

static inline bool is_of(uint64_t word, uintptr_t address)
{
    return (word & address_part) == address;
}

static inline uint64_t hash_caller(uintptr_t address)
{
    return address * 11400714819323198485u;
}

static inline caller *callers_of(uintptr_t address)
{
    return callers[hash_caller(address) >> 57];
}

_Static_assert(SETS == 1 << (64 - 57), "callers_of takes the upper bits");

/* Stores a caller: over an older entry of the same address, else in an empty place, else over
 * another caller, which the address selects. */
static void keep_caller(uintptr_t address, unsigned number)
{
    caller *set = callers_of(address), *place = &set[(hash_caller(address) >> 32) % WAYS];

    for (unsigned i = WAYS; i-- > 0;)
        if (atomic_load_explicit(&set[i], memory_order_relaxed) == 0)
            place = &set[i];
    for (unsigned i = 0; i < WAYS; i++)
        if (is_of(atomic_load_explicit(&set[i], memory_order_relaxed), address))
            place = &set[i];
    atomic_store_explicit(place, address | (uint64_t)number << ADDRESS_BITS, memory_order_release);
}

/* Asks the loader about a caller.  An address in no object is not cached, since an object that is
 * loaded there later would never be noticed. */
static RS_COLD unsigned look_up_caller(const void *address)
{
    unsigned number = rs_object_of(address);

    if (number && (uintptr_t)address <= address_part)
        keep_caller((uintptr_t)address, number);
    return number;
}

unsigned rs_object_of_caller(const void *address)
{
    const caller *set = callers_of((uintptr_t)address);

    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t word = atomic_load_explicit(&set[i], memory_order_acquire);
        unsigned number = (unsigned)(word >> ADDRESS_BITS);
        if (is_of(word, (uintptr_t)address) && rs_object_name(number))
            return number;
    }
    return look_up_caller(address);
}

/* ---- symbols ---- */

/* A mapped object file. */
struct file {
    const unsigned char *bytes;
    size_t length;
};

static bool map_object_file(const char *path, struct file *file)
{
    int fd = rs_file_open(path);
    struct stat status;
    void *mapped = MAP_FAILED;

    if (fd < 0)
        return false;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        (size_t)status.st_size > sizeof(ElfW(Ehdr)))
        mapped = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    rs_file_close(fd);
    if (mapped == MAP_FAILED)
        return false;
    *file = (struct file){mapped, (size_t)status.st_size};
    return true;
}

/* Returns a part of the file, or NULL when it would reach beyond the end. */
static const void *part(const struct file *file, size_t offset, size_t bytes)
{
    return offset <= file->length && bytes <= file->length - offset ? file->bytes + offset : NULL;
}

/* Copies a part of the file, since tables in a file need not be aligned; returns false when it
 * would reach beyond the end. */
static bool read_file_part(const struct file *file, size_t offset, void *into, size_t bytes)
{
    const void *from = part(file, offset, bytes);

    if (from)
        memcpy(into, from, bytes);
    return from;
}

static bool find_section(const struct file *file, const ElfW(Ehdr) * header, unsigned type,
                         ElfW(Shdr) * section)
{
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (!read_file_part(file, header->e_shoff + (size_t)i * sizeof(*section), section,
                            sizeof(*section)))
            return false;
        if (section->sh_type == type)
            return true;
    }
    return false;
}

static void copy_symbol_name(const struct file *file, const ElfW(Shdr) * names, size_t at,
                             struct rs_symbol *symbol)
{
    const char *table = part(file, names->sh_offset, names->sh_size);

    if (table && at < names->sh_size)
        snprintf(symbol->function, sizeof(symbol->function), "%.*s",
                 (int)strnlen(table + at, names->sh_size - at), table + at);
}

static void search_file(const struct file *file, uintptr_t offset, struct rs_symbol *symbol)
{
    ElfW(Ehdr) header;
    ElfW(Shdr) section, names;
    ElfW(Sym) entry;

    if (!read_file_part(file, 0, &header, sizeof(header)) ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_shentsize != sizeof(section) ||
        !(find_section(file, &header, SHT_SYMTAB, &section) ||
          find_section(file, &header, SHT_DYNSYM, &section)) ||
        !read_file_part(file, header.e_shoff + (size_t)section.sh_link * sizeof(names), &names,
                        sizeof(names)))
        return;
    for (size_t i = 0; i < section.sh_size / sizeof(entry); i++) {
        if (!read_file_part(file, section.sh_offset + i * sizeof(entry), &entry, sizeof(entry)))
            return;
        if ((entry.st_info & 0xf) != STT_FUNC || offset - entry.st_value >= entry.st_size)
            continue;
        copy_symbol_name(file, &names, entry.st_name, symbol);
        symbol->function_offset = offset - entry.st_value;
        return;
    }
}

void rs_symbol_in_file(const char *path, uintptr_t address, struct rs_symbol *symbol)
{
    struct file file;

    if (!map_object_file(path, &file))
        return;
    search_file(&file, address, symbol);
    munmap((void *)(uintptr_t)file.bytes, file.length);
}

void rs_symbol_describe(const void *return_address, bool may_lock, struct rs_symbol *symbol)
{
    /* One byte before the return address lies in the call; the return address itself may belong to
     * another line or another function. */
    uintptr_t address = (uintptr_t)return_address - 1, base;
    const char *path;
    Dl_info info;

    *symbol = (struct rs_symbol){.object = "?", .object_offset = address};
    if (!rs_object_origin((const void *)address, &path, &base))
        return;
    symbol->object_offset = address - base;
    snprintf(symbol->object, sizeof(symbol->object), "%s", name_of(path));
    if (may_lock && dladdr((const void *)address, &info) && info.dli_sname && info.dli_saddr) {
        snprintf(symbol->function, sizeof(symbol->function), "%s", info.dli_sname);
        symbol->function_offset = address - (uintptr_t)info.dli_saddr;
    } else {
        rs_symbol_in_file(*path ? path : "/proc/self/exe", symbol->object_offset, symbol);
    }
}
