/* SPDX-License-Identifier: Apache-2.0 */
/* What the device's free memory shrinks by for many blocks of one kind and size, and where the
 * memory of stream-ordered pools of each type and location is.  Managed memory takes none until the
 * device touches it. */
#include "facts.h"

#include <stdio.h>
#include <string.h>

enum {
    BLOCKS = 128,
    ROW_MOST = 128 << 10,
    TYPE_MANAGED = 2, /* since 13.0, as are the locations: */
    LOCATION_NONE = 0,
    LOCATION_HOST = 2,
    LOCATION_HOST_NUMA = 3,
};

struct kind {
    const char *name;
    CUresult (*take)(size_t bytes, CUdeviceptr *block);
    CUresult (*give)(CUdeviceptr block);
};

static size_t free_bytes(void)
{
    size_t bytes = 0, total_bytes;
    NEED(CU(cuCtxSynchronize)());
    NEED(CU(cuMemGetInfo_v2)(&bytes, &total_bytes));
    return bytes;
}

/* ---- kinds ---- */

static CUresult take_plain(size_t bytes, CUdeviceptr *block)
{
    return CU(cuMemAlloc_v2)(block, bytes);
}

static CUresult give_plain(CUdeviceptr block)
{
    return CU(cuMemFree_v2)(block);
}

static CUresult take_managed(size_t bytes, CUdeviceptr *block)
{
    return CU(cuMemAllocManaged)(block, bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult take_array(size_t bytes, CUdeviceptr *block)
{
    const CUDA_ARRAY_DESCRIPTOR shape = {.Width = 4096,
                                         .Height = bytes / 4096,
                                         .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                         .NumChannels = 1};
    return CU(cuArrayCreate_v2)((CUarray *)block, &shape);
}

/* A row has at most 128 Ki elements. */
static CUresult take_row(size_t bytes, CUdeviceptr *block)
{
    const CUDA_ARRAY_DESCRIPTOR shape = {.Width = bytes / 4 < ROW_MOST ? bytes / 4 : ROW_MOST,
                                         .Format = CU_AD_FORMAT_FLOAT,
                                         .NumChannels = 1};
    return CU(cuArrayCreate_v2)((CUarray *)block, &shape);
}

static CUresult give_array(CUdeviceptr block)
{
    return CU(cuArrayDestroy)((CUarray)(uintptr_t)block);
}

static CUresult take_layers(size_t bytes, CUdeviceptr *block)
{
    const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 128,
                                           .Height = bytes / 128 / 4,
                                           .Depth = 4,
                                           .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                           .NumChannels = 1,
                                           .Flags = CUDA_ARRAY3D_LAYERED};
    return CU(cuArray3DCreate_v2)((CUarray *)block, &shape);
}

static CUresult take_levels(size_t bytes, CUdeviceptr *block)
{
    const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 128,
                                           .Height = bytes / 128,
                                           .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                           .NumChannels = 1};
    return CU(cuMipmappedArrayCreate)((CUmipmappedArray *)block, &shape, 4);
}

static CUresult give_levels(CUdeviceptr block)
{
    return CU(cuMipmappedArrayDestroy)((CUmipmappedArray)(uintptr_t)block);
}

static const struct kind kinds[] = {
    {"alloc", take_plain, give_plain},   {"managed", take_managed, give_plain},
    {"array", take_array, give_array},   {"row", take_row, give_array},
    {"layers", take_layers, give_array}, {"levels", take_levels, give_levels},
};

static const size_t sizes[] = {4 << 10,   16 << 10, 64 << 10,
                               256 << 10, 1 << 20,  (1 << 20) + (64 << 10)};

static unsigned count_for(size_t bytes)
{
    return bytes > 512 << 10 ? BLOCKS / 4 : BLOCKS;
}

static void measure(const struct kind *kind, size_t bytes)
{
    CUdeviceptr blocks[BLOCKS];
    unsigned count = count_for(bytes);
    size_t before = free_bytes(), taken, left;
    char name[80];

    for (unsigned i = 0; i < count; i++)
        NEED(kind->take(bytes, &blocks[i]));
    taken = before - free_bytes();
    for (unsigned i = 0; i < count; i++)
        NEED(kind->give(blocks[i]));
    left = before - free_bytes();
    snprintf(name, sizeof(name), "%s_%zu_kib_times_%u", kind->name, bytes >> 10, count);
    facts_say(name, "%zd KiB, freed %zd", (ssize_t)taken / 1024, (ssize_t)left / 1024);
}

void facts_footprint(void)
{
    CUdeviceptr warm;

    facts_begin();
    NEED(take_managed(4096, &warm));
    NEED(facts_fill(NULL, warm, 1, 1));
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (size_t j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++)
            measure(&kinds[i], sizes[j]);
}

/* ---- pools ---- */

static const struct pool_kind {
    const char *name;
    int type, location, id;
} pool_kinds[] = {
    {"device", CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, 0},
    {"host", CU_MEM_ALLOCATION_TYPE_PINNED, LOCATION_HOST, 0},
    {"host_7", CU_MEM_ALLOCATION_TYPE_PINNED, LOCATION_HOST, 7},
    {"host_numa", CU_MEM_ALLOCATION_TYPE_PINNED, LOCATION_HOST_NUMA, 0},
    {"managed_device", TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE, 0},
    {"managed_none", TYPE_MANAGED, LOCATION_NONE, 0},
    {"managed_none_7", TYPE_MANAGED, LOCATION_NONE, 7},
    {"managed_host", TYPE_MANAGED, LOCATION_HOST, 0},
    {"managed_host_numa", TYPE_MANAGED, LOCATION_HOST_NUMA, 0},
};

static void say_for(const struct pool_kind *kind, const char *what, long long value)
{
    char name[80];

    snprintf(name, sizeof(name), "%s_%s", kind->name, what);
    facts_say(name, "%lld", value);
}

/* An allocation of 8 MiB, touched by the device. */
static void use_pool(const struct pool_kind *kind, CUmemoryPool pool)
{
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t bytes = (size_t)8 << 20, before = free_bytes();
    cuuint64_t reserved = 0;
    CUdeviceptr block = 0;
    unsigned value = 99;
    CUresult result = CU(cuMemAllocFromPoolAsync)(&block, bytes, pool, NULL);

    say_for(kind, "allocate", result);
    if (result)
        return;
    if (kind->location != CU_MEM_LOCATION_TYPE_DEVICE)
        say_for(kind, "set_access", CU(cuMemPoolSetAccess)(pool, &access, 1));
    /* A device that may not reach it would fault. */
    if (kind->type == TYPE_MANAGED || kind->location == CU_MEM_LOCATION_TYPE_DEVICE)
        NEED(facts_fill(NULL, block, bytes / 4, 1));
    /* The driver keeps pages of managed memory that was freed, and has them for the next. */
    if (kind->type != TYPE_MANAGED)
        say_for(kind, "takes_device_mib", (long long)(before - free_bytes()) >> 20);
    NEED(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    say_for(kind, "reserves_steps_of_8_mib", reserved > 0 && (reserved >> 20) % 8 == 0);
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
    say_for(kind, "memory_type", value);
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, block));
    say_for(kind, "is_managed", value);
    NEED(CU(cuMemFreeAsync)(block, NULL));
    NEED(CU(cuCtxSynchronize)());
}

static void new_pool(const struct pool_kind *kind)
{
    CUmemPoolProps props;
    CUmemoryPool pool;
    CUresult result;

    memset(&props, 0, sizeof(props));
    props.allocType = (CUmemAllocationType)kind->type;
    props.location.type = (CUmemLocationType)kind->location;
    props.location.id = kind->id;
    result = CU(cuMemPoolCreate)(&pool, &props);
    say_for(kind, "create", result);
    if (result)
        return;
    use_pool(kind, pool);
    NEED(CU(cuMemPoolDestroy)(pool));
}

typedef CUresult get_function(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type);

static void default_pool(const struct pool_kind *kind, CUmemoryPool of_device)
{
    get_function *get_default = (get_function *)(uintptr_t)facts_find("cuMemGetDefaultMemPool");
    get_function *get = (get_function *)(uintptr_t)facts_find("cuMemGetMemPool");
    CUmemLocation location = {.type = (CUmemLocationType)kind->location, .id = kind->id};
    CUmemoryPool pool = NULL, current = NULL;
    char name[80];
    CUresult result = get_default(&pool, &location, (CUmemAllocationType)kind->type);

    say_for(kind, "default", result);
    if (result)
        return;
    say_for(kind, "current", get(&current, &location, (CUmemAllocationType)kind->type));
    snprintf(name, sizeof(name), "%s_current_is_the_default", kind->name);
    SAY_YES(name, current == pool);
    snprintf(name, sizeof(name), "%s_default_is_the_devices", kind->name);
    SAY_YES(name, of_device == pool);
    snprintf(name, sizeof(name), "%s_default", kind->name);
    use_pool(&(struct pool_kind){name, kind->type, kind->location, kind->id}, pool);
}

void facts_pools(void)
{
    CUmemoryPool of_device;
    CUdeviceptr warm;

    facts_begin();
    NEED(take_managed(4096, &warm));
    NEED(facts_fill(NULL, warm, 1, 1));
    NEED(CU(cuDeviceGetDefaultMemPool)(&of_device, 0));
    for (size_t i = 0; i < sizeof(pool_kinds) / sizeof(pool_kinds[0]); i++)
        new_pool(&pool_kinds[i]);
    for (size_t i = 0; i < sizeof(pool_kinds) / sizeof(pool_kinds[0]); i++)
        default_pool(&pool_kinds[i], of_device);
}
