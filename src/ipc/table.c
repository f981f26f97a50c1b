/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/table.h"

#include "base/check.h"
#include "base/file.h"
#include "base/hash_table.h"
#include "base/log.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- handles ---- */

/* The last byte is the version of the format. */
const char rs_ipc_magic[8] = {'r', 'm', 'm', 's', 'h', 'i', 'm', '2'};

bool rs_ipc_is_ours(const CUipcMemHandle *handle)
{
    return memcmp(handle, rs_ipc_magic, sizeof(rs_ipc_magic) - 1) == 0;
}

static uint64_t checksum_of(const struct rs_ipc_handle *handle)
{
    return rs_hash_bytes(handle, offsetof(struct rs_ipc_handle, sum));
}

void rs_ipc_seal(const struct rs_ipc_handle *from, CUipcMemHandle *to)
{
    struct rs_ipc_handle sealed = *from;

    RS_ASSERT(from->slot < RS_IPC_SLOTS && from->generation != 0); /* rs_ipc_read checks the same */
    sealed.sum = checksum_of(&sealed);
    memcpy(to, &sealed, sizeof(*to));
}

bool rs_ipc_read(const CUipcMemHandle *from, struct rs_ipc_handle *to)
{
    memcpy(to, from, sizeof(*to));
    return memcmp(to->magic, rs_ipc_magic, sizeof(rs_ipc_magic)) == 0 &&
           to->sum == checksum_of(to) && to->slot < RS_IPC_SLOTS && to->process > 0 &&
           to->fd >= 0 && to->generation != 0;
}

/* ---- tables of other processes ---- */

struct rs_exporter {
    unsigned char nonce[RS_IPC_NONCE_BYTES];
    struct rs_kept_descriptor file;
    unsigned uses;
    struct rs_exporter *next;
};

static struct rs_exporter *exporters;

void rs_ipc_say_refused(bool *said, const char *reason)
{
    if (rs_log_once(said))
        rs_log("cuIpcOpenMemHandle: refused: %s", reason);
}

/* ---- tables ---- */

/* True when the symbolic link leads to a memory file named RS_IPC_FILE_NAME. */
static bool is_table_link(const char *path)
{
    static const char name[] = "/memfd:" RS_IPC_FILE_NAME;
    char target[64];
    ssize_t length = readlink(path, target, sizeof(target));

    return length >= (ssize_t)sizeof(name) - 1 && memcmp(target, name, sizeof(name) - 1) == 0;
}

static bool is_table_of(int fd, const struct stat *status, const struct rs_ipc_handle *handle)
{
    struct rs_ipc_header header;

    return S_ISREG(status->st_mode) && status->st_size == RS_IPC_FILE_BYTES &&
           rs_file_read(fd, &header, sizeof(header), 0) == sizeof(header) &&
           memcmp(header.magic, rs_ipc_magic, sizeof(header.magic)) == 0 &&
           memcmp(header.nonce, handle->nonce, sizeof(header.nonce)) == 0;
}

/* Reports why an exporter cannot be used, and returns the error. start_ticks is a start time that
 * is not the handle's, or -1, with `error`, if it cannot be read. If it cannot be read but kill()
 * finds the process, /proc hides the process from this one. In all other cases the exporter has
 * ended. */
static CUresult refuse_not_running(const struct rs_ipc_handle *handle, long long start_ticks,
                                   int error)
{
    CUresult result;

    if (start_ticks < 0 && rs_ipc_is_lack(error, &result))
        return result;
    if (start_ticks < 0 && (kill(handle->process, 0) == 0 || errno == EPERM))
        return RS_IPC_REFUSE(
            CUDA_ERROR_NOT_PERMITTED,
            "the process that shared the memory is still running, but this process "
            "cannot see it in /proc (is /proc mounted with hidepid?)");
    return RS_IPC_REFUSE(CUDA_ERROR_MAP_FAILED, "the process that shared the memory has ended");
}

bool rs_exporter_is_running(const struct rs_ipc_handle *handle, CUresult *result)
{
    long long start_ticks = -1;

    errno = 0;
    if (handle->process_namespace != rs_process_namespace())
        *result = RS_IPC_REFUSE(CUDA_ERROR_NOT_PERMITTED,
                                "the memory belongs to a process in another PID namespace, as in "
                                "another container: start both processes in one PID namespace");
    else if ((start_ticks = rs_process_start_ticks(handle->process)) != handle->start_ticks)
        *result = refuse_not_running(handle, start_ticks, errno);
    else
        return true;
    return false;
}

/* Opens the file if it is a table. Returns the descriptor, or -1 with errno 0 or the error. The
 * path may lead to anything by now, and opening a device or a FIFO has effects. So the file is
 * first held without being opened (O_PATH), checked, and then that very file is opened. */
static int open_if_table(const char *path)
{
    int fd = -1, held = rs_file_hold(path);
    struct stat status;
    char self[64];

    if (held < 0)
        return -1;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", held);
    errno = 0;
    if (fstat(held, &status) == 0 && S_ISREG(status.st_mode) && is_table_link(self))
        fd = rs_file_open(self);
    rs_file_close(held);
    return fd;
}

static CUresult refuse_table(int error)
{
    CUresult result;

    if (rs_ipc_is_lack(error, &result))
        return result;
    if (error == EACCES || error == EPERM)
        return RS_IPC_REFUSE(CUDA_ERROR_NOT_PERMITTED,
                             "this process is not allowed to access the process that shared the "
                             "memory, which belongs to "
                             "another user or has forbidden such access (prctl PR_SET_DUMPABLE)");
    return RS_IPC_REFUSE(CUDA_ERROR_MAP_FAILED,
                         "the process that shared the memory runs another program now (exec), or "
                         "has closed a file descriptor that rmmshim needs for sharing (perhaps in "
                         "a loop over all descriptors); let it close only descriptors that it "
                         "has opened, or share the memory again");
}

/* Opens the exporter's table and returns the descriptor; -1 with the CUDA error in *result. */
static int open_table(const struct rs_ipc_handle *handle, CUresult *result)
{
    struct stat status;
    char path[64];
    int fd, error;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)handle->process, (int)handle->fd);
    fd = open_if_table(path);
    error = fd < 0 || fstat(fd, &status) != 0 ? errno : 0;
    /* A privileged process can open any file, so the owner is checked. */
    if (fd >= 0 && !error && status.st_uid != geteuid())
        error = EACCES;
    if (fd >= 0 && !error && is_table_of(fd, &status, handle))
        return fd;
    if (fd >= 0)
        rs_file_close(fd);
    *result = refuse_table(error);
    return -1;
}

/* Adds a record for an exporter, with no open file and no uses. Returns NULL when out of host
 * memory. */
static struct rs_exporter *add_exporter(const struct rs_ipc_handle *handle)
{
    struct rs_exporter *exporter = malloc(sizeof(*exporter));

    if (!exporter)
        return NULL;
    *exporter = (struct rs_exporter){.file = {.fd = -1}, .next = exporters};
    memcpy(exporter->nonce, handle->nonce, sizeof(exporter->nonce));
    exporters = exporter;
    return exporter;
}

static struct rs_exporter *find_exporter(const struct rs_ipc_handle *handle)
{
    struct rs_exporter *exporter = exporters;

    while (exporter && memcmp(exporter->nonce, handle->nonce, sizeof(exporter->nonce)) != 0)
        exporter = exporter->next;
    return exporter;
}

/* Opens the table if it is not open, or if the program has closed its descriptor.  Returns false
 * with the CUDA error in *result when that fails. */
static bool open_exporter_file(struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                               CUresult *result)
{
    int fd;

    if (rs_descriptor_is_kept(&exporter->file))
        return true;
    fd = open_table(handle, result);
    if (fd < 0)
        return false;
    if (rs_descriptor_keep(&exporter->file, fd))
        return true;
    *result = CUDA_ERROR_OUT_OF_MEMORY; /* the process has no descriptor left */
    return false;
}

struct rs_exporter *rs_exporter_use(const struct rs_ipc_handle *handle, CUresult *result)
{
    struct rs_exporter *exporter = find_exporter(handle);

    if (!rs_exporter_is_running(handle, result))
        return NULL; /* the exporter has ended, even if its table is still open here */
    if (!exporter)
        exporter = add_exporter(handle);
    if (!exporter) {
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    exporter->uses++;
    if (open_exporter_file(exporter, handle, result))
        return exporter;
    rs_exporter_leave(exporter);
    return NULL;
}

/* Each table is open only once, since closing any descriptor of a file drops all locks that the
 * process has on the file (fcntl). */
void rs_exporter_leave(struct rs_exporter *exporter)
{
    struct rs_exporter **link = &exporters;

    if (--exporter->uses > 0)
        return;
    while (*link != exporter)
        link = &(*link)->next;
    *link = exporter->next;
    rs_descriptor_close(&exporter->file);
    free(exporter);
}

bool rs_exporter_read(const struct rs_exporter *exporter, struct rs_ipc_header *header)
{
    return rs_descriptor_is_kept(&exporter->file) &&
           rs_file_read(exporter->file.fd, header, sizeof(*header), 0) == sizeof(*header);
}

/* ---- slots ---- */

static const char no_list[] =
    "the list of blocks that the other process shares cannot be locked or read: set "
    "RMM_IPC=dedicated in that process, which needs no list, but serves memory from the resource "
    "'cuda' without a pool";

static bool set_lock(const struct rs_exporter *exporter, uint32_t slot, short type)
{
    struct flock wanted = {.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};

    return rs_descriptor_is_kept(&exporter->file) &&
           fcntl(exporter->file.fd, F_SETLK, &wanted) == 0;
}

bool rs_exporter_lock(struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                      struct rs_ipc_slot *slot, CUresult *result)
{
    uint32_t again = 0;
    bool is_read;

    if (!set_lock(exporter, handle->slot, F_RDLCK)) {
        *result = RS_IPC_REFUSE(CUDA_ERROR_MAP_FAILED, no_list);
        return false;
    }
    /* The slot must be locked before its generation is read (ipc/table.h). */
    atomic_thread_fence(memory_order_seq_cst);
    is_read = rs_file_read(exporter->file.fd, slot, sizeof(*slot),
                           (off_t)rs_ipc_slot_at(handle->slot)) == sizeof(*slot);
    /* The end of a context frees the slot although it is locked, so the slot may have been written
     * anew while it was copied: the generation must still be the same. */
    is_read =
        is_read && rs_file_read(exporter->file.fd, &again, sizeof(again),
                                (off_t)(rs_ipc_slot_at(handle->slot) +
                                        offsetof(struct rs_ipc_slot, generation))) == sizeof(again);
    if (is_read && slot->generation == handle->generation && again == handle->generation)
        return true;
    *result = is_read ? RS_IPC_REFUSE(CUDA_ERROR_INVALID_VALUE,
                                      "the process that shared the memory has freed it")
                      : RS_IPC_REFUSE(CUDA_ERROR_MAP_FAILED, no_list);
    return false;
}

void rs_exporter_unlock(struct rs_exporter *exporter, uint32_t slot)
{
    (void)set_lock(exporter, slot, F_UNLCK);
}
