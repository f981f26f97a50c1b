/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/proof.h"

#include "driver/driver.h"

#include <stdlib.h>

/* A small block of the driver's own that stays in a context: it goes with the context alone. */
struct witness {
    CUcontext context;
    struct rs_proof proof;
    struct witness *next;
};

static struct witness *witnesses;

static bool is_base(CUdeviceptr address)
{
    CUdeviceptr base;
    size_t bytes;

    return rs_driver.cuMemGetAddressRange_v2(&base, &bytes, address) == CUDA_SUCCESS &&
           base == address;
}

struct rs_proof rs_proof_of(CUdeviceptr address)
{
    return (struct rs_proof){address, rs_driver_allocation_id(address), is_base(address)};
}

bool rs_proof_holds(const struct rs_proof *proof)
{
    return proof->id ? rs_driver_allocation_id(proof->address) == proof->id
                     : !proof->has_range || is_base(proof->address);
}

/* Returns the witness of the context, and forgets those of contexts that have ended: another
 * context may have the handle of one. */
static struct witness *find_witness(CUcontext context)
{
    struct witness **link = &witnesses, *witness;

    while ((witness = *link)) {
        if (rs_proof_holds(&witness->proof)) {
            if (witness->context == context)
                return witness;
            link = &witness->next;
            continue;
        }
        *link = witness->next;
        free(witness);
    }
    return NULL;
}

static struct witness *make_witness(CUcontext context)
{
    enum { WITNESS_BYTES = 512 };
    struct witness *witness = calloc(1, sizeof(*witness));
    CUstreamCaptureMode mode = rs_capture_relax();
    CUdeviceptr address;

    if (witness && rs_driver.cuMemAlloc_v2(&address, WITNESS_BYTES) == CUDA_SUCCESS) {
        *witness = (struct witness){context, rs_proof_of(address), witnesses};
        witnesses = witness;
    } else {
        free(witness);
        witness = NULL;
    }
    rs_capture_restore(mode);
    return witness;
}

struct rs_proof rs_proof_of_context(CUcontext context)
{
    const struct witness *witness = find_witness(context);

    if (!witness)
        witness = make_witness(context);
    return witness ? witness->proof : (struct rs_proof){.id = 0};
}
