/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/print.h"

#include "tool/tool.h"

#include <stdio.h>
#include <unistd.h>

static struct rs_page page;
static struct rs_page_file file;

static void begin(int fd, const char *name)
{
    (void)fflush(stdout);
    file = (struct rs_page_file){.variable = name, .state = RS_PAGE_FILE_NONE};
    rs_page_begin(&page, &file, NULL);
    page.fd = fd;
}

static bool end(const struct rs_node *root)
{
    rs_page_end(&page);
    if (root->document->is_short)
        tool_say("%s: out of memory", file.variable);
    return file.error == 0 && !root->document->is_short;
}

bool print_text(const struct rs_node *root)
{
    begin(STDOUT_FILENO, "standard output");
    rs_document_put_text(&page, root);
    return end(root);
}

bool print_json(const struct rs_node *root)
{
    begin(STDOUT_FILENO, "standard output");
    rs_document_put_json(&page, root, false);
    return end(root);
}

bool print_metrics(const struct rs_node *root, int fd, const char *name)
{
    begin(fd, name);
    rs_document_put_metrics(&page, root);
    return end(root);
}
