/* SPDX-License-Identifier: Apache-2.0 */
/* A document, filled once, as text, as JSON and as metrics. */
#include "unit.h"

#include "base/check.h"
#include "report/document.h"

#include <string.h>

static struct rs_document document;
static struct rs_page page;

static const char *text_of(void)
{
    rs_page_begin_text(&page);
    rs_document_put_text(&page, &document.root);
    return page.text;
}

static const char *json_of(bool in_one_line)
{
    rs_page_begin_text(&page);
    rs_document_put_json(&page, &document.root, in_one_line);
    return page.text;
}

static const char *metrics_of(void)
{
    rs_page_begin_text(&page);
    rs_document_put_metrics(&page, &document.root);
    return page.text;
}

static struct rs_node *add_device(struct rs_node *devices, unsigned number, uint64_t used)
{
    static const struct rs_metric metric = {"used_bytes", "What is used.", false};
    struct rs_node *device = rs_node_object(devices, NULL);

    rs_node_count(device, "device", number)->is_label = true;
    rs_node_bytes(device, "used", used)->metric = &metric;
    return device;
}

static struct rs_node *begin_program(const char *name)
{
    rs_document_begin(&document);
    rs_node_text(&document.root, "program", name)->is_label = true;
    return rs_node_list(&document.root, "devices");
}

TEST(one_tree_has_three_printers)
{
    struct rs_node *devices = begin_program("train \"it\"");

    add_device(devices, 0, 3ul << 20)->line = "{program}, device {device}: {used}\n";
    add_device(devices, 1, 0)->line = "device {device}[ uses {used}]\n";
    assert_string_equal(text_of(), "train \"it\", device 0: 3.00 MiB\ndevice 1\n");
    assert_string_equal(json_of(false), "{\"program\":\"train \\\"it\\\"\",\"devices\":[\n"
                                        "{\"device\":0,\"used\":3145728},\n"
                                        "{\"device\":1,\"used\":0}]}\n");
    assert_string_equal(metrics_of(),
                        "# HELP used_bytes What is used.\n# TYPE used_bytes gauge\n"
                        "used_bytes{program=\"train \\\"it\\\"\",device=\"0\"} 3145728\n"
                        "used_bytes{program=\"train \\\"it\\\"\",device=\"1\"} 0\n");
    rs_document_release(&document);
}

TEST(each_unit_reads_in_its_own_way)
{
    struct rs_node *root = &document.root;

    rs_document_begin(&document);
    rs_node_flag(root, "yes", true);
    rs_node_nanoseconds(root, "waited", 1500000);
    rs_node_count(root, "offset", 255);
    rs_node_word(root, "word", "abc");
    root->line = "{waited} {offset:x}|{word:5}|{missing}\n";
    root->end = "end\n";
    assert_string_equal(text_of(), "1.500 ms 0xff|abc  |\nend\n");
    assert_string_equal(json_of(true),
                        "{\"yes\":true,\"waited\":1500000,\"offset\":255,\"word\":\"abc\"}\n");
    rs_document_release(&document);
}

TEST(a_group_is_written_when_all_it_names_is_there)
{
    struct rs_node *root = &document.root;

    rs_document_begin(&document);
    rs_node_count(root, "one", 1);
    rs_node_count(root, "two", 2);
    rs_node_count(root, "none", 0);
    rs_node_word(root, "empty", "");
    root->line = "{one} block{one||s}, {two} block{two||s}[, {none} lost][{none!}, none lost]"
                 "[{one?}{empty?}, never][[{one}]][{one?}, {none:1} of {two}][{missing!}, no "
                 "such][ ({two})]\n";
    assert_string_equal(text_of(), "1 block, 2 blocks, none lost[1], 0 of 2, no such (2)\n");
    rs_document_release(&document);
}

/* A terminal obeys no name, and a line stays one. */
TEST(what_others_chose_is_made_plain)
{
    begin_program("a\033[2J\nb");
    document.root.line = "{program}\n";
    assert_string_equal(text_of(), "a?[2J?b\n");
    assert_string_equal(json_of(true), "{\"program\":\"a?[2J?b\",\"devices\":[]}\n");
    rs_document_release(&document);
}

/* All samples of a metric stand together, and none has another type than its head says. */
TEST(a_metric_has_one_type)
{
    static const struct rs_metric metric = {"n", "Number.", true}, other = {"m", "More.", false},
                                  liar = {"n", "A lie.", false};
    struct rs_node *list;

    rs_document_begin(&document);
    list = rs_node_list(&document.root, "list");
    for (unsigned i = 0; i < 2; i++) {
        struct rs_node *item = rs_node_object(list, NULL);
        rs_node_count(item, "n", i)->metric = &metric;
        rs_node_nanoseconds(item, "m", i)->metric = &other;
        rs_node_count(item, "lie", i)->metric = &liar;
    }
    assert_string_equal(metrics_of(), "# HELP n Number.\n# TYPE n counter\nn 0\nn 1\n"
                                      "# HELP m More.\n# TYPE m gauge\n"
                                      "m 0.000000000\nm 0.000000001\n");
    rs_document_release(&document);
}

/* What finds no room is left out, the JSON stays JSON, and it and the text say so. */
TEST(a_document_has_a_bound)
{
    static char text[1 << 20];
    struct rs_node *list;

    memset(text, 'x', sizeof(text) - 1);
    rs_document_begin(&document);
    list = rs_node_list(&document.root, "list");
    for (unsigned i = 0; i < RS_DOCUMENT_BYTES_MAX / sizeof(text) + 2; i++)
        rs_node_text(list, NULL, text);
    assert_true(document.is_short);
    assert_true(document.mapped_bytes <= RS_DOCUMENT_BYTES_MAX);
    list->first = list->last = NULL;
    assert_string_equal(json_of(true), "{\"list\":[],\"short\":true}\n");
    document.root.line = "a list:\n";
    assert_string_equal(text_of(),
                        "a list:\nThis report is incomplete, because host memory ran out.\n");
    rs_document_release(&document);
}
