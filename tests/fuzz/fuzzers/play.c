/* SPDX-License-Identifier: Apache-2.0 */
/* NAME PATH...: gives a fuzzer each file, and each file of each folder, where libFuzzer is not
 * linked.  Prints their number; 1 where there is none. */
#include "fuzzer.h"

#include <dirent.h>
#include <limits.h>

static unsigned played;

static void play_file(const char *path)
{
    FILE *file = fopen(path, "re");
    uint8_t *bytes = NULL;
    size_t length = 0, room = 0, some = 0;

    must(file, path);
    do {
        length += some;
        if (length == room) {
            room = 2 * room + 4096;
            bytes = realloc(bytes, room);
            must(bytes, "no memory");
        }
        some = fread(bytes + length, 1, room - length, file);
    } while (some > 0);
    (void)fclose(file);
    fprintf(stderr, "%s\n", path);
    (void)LLVMFuzzerTestOneInput(bytes, length);
    free(bytes);
    played++;
}

static void play(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    char inside[PATH_MAX];

    if (!folder) {
        play_file(path);
        return;
    }
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(inside, sizeof(inside), "%s/%s", path, entry->d_name);
        play_file(inside);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        play(argv[i]);
    printf("%u inputs\n", played);
    return played == 0;
}
