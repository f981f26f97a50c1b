/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions: parsing, diagnostics, where reuse goes, the canonical text. */
#include "unit.h"

#include "lines.h"

#include "base/check.h"
#include "resource/expression.h"

#include <stdlib.h>
#include <string.h>

static struct rs_expression *parse(const char *text, struct rs_source *source, struct lines *lines)
{
    *source = (struct rs_source){"RMM_RESOURCE", text};
    return rs_expression_parse(source, lines_begin(lines));
}

TEST(canonical_text_parses_back)
{
    static const char *const cases[][2] = {
        {"cuda", "cuda"},
        {" cuda ", "cuda"},
        {"cuda()", "cuda"},
        {"POOL(Cuda)", "pool(cuda)"},
        {"pool(cuda, initial_size=1GiB)", "pool(cuda, initial_size=1GiB)"},
        {"pool ( cuda , initial_size = 1G , maximum_size=none )",
         "pool(cuda, initial_size=1GiB, maximum_size=none)"},
        {"pool(cuda,initial_pool_size=4096,maximum_pool_size=80%)",
         "pool(cuda, initial_size=4KiB, maximum_size=80%)"},
        {"pool(cuda, initial_size=50%free)", "pool(cuda, initial_size=50%free)"},
        {"statistics(limiting(pool(cuda, growth=rmm), allocation_limit=8GiB))",
         "statistics(limiting(pool(cuda, growth=rmm), limit=8GiB))"},
        {"binning(pool(managed), min_size_exponent=18, max_size_exponent=22)",
         "binning(pool(managed), minimum_size=256KiB, maximum_size=4MiB)"},
        {"binning(pool(cuda), bins=256KiB+300000+1MiB)",
         "binning(pool(cuda), bins=256KiB+300000B+1MiB)"},
        {"binning(pool(cuda), bin(arena(cuda), size=1MiB), bin(cuda, size=4096), bins=300000)",
         "binning(pool(cuda), bin(arena(cuda), size=1MiB), bin(cuda, size=4KiB), bins=300000B)"},
        {"binning(cuda, add_bin(bin_resource=managed, allocation_size=1MiB))",
         "binning(cuda, bin(managed, size=1MiB))"},
        {"binning(pool(cuda), bins= 1MiB + 2**18 )", "binning(pool(cuda), bins=1MiB+256KiB)"},
        {"logging(cuda, path=\"a, b).csv\")", "logging(cuda, path=\"a, b).csv\")"},
        {"logging(cuda, path=/tmp/x.csv)", "logging(cuda, path=/tmp/x.csv)"},
        /* quotes of either kind, in a text with and without them */
        {"logging(cuda, path=a b\")", "logging(cuda, path='a b\"')"},
        {"logging(cuda, path=a b\"c')", "logging(cuda, path=a b\"c')"},
        {"logging(cuda, path='\"a')", "logging(cuda, path='\"a')"},
        {"logging(cuda, path=\"'a, b\")", "logging(cuda, path=\"'a, b\")"},
        {"logging(cuda, path=\"a\t\")", "logging(cuda, path=\"a\t\")"},
        {"pool(pool(cuda))", "pool(pool(cuda))"},
        /* as RMM's guides write it, in Python and in C++ */
        {"PoolMemoryResource(CudaMemoryResource(), initial_pool_size=1GiB)",
         "pool(cuda, initial_size=1GiB)"},
        {"rmm.mr.PoolMemoryResource(rmm.mr.ManagedMemoryResource(), initial_pool_size=2**30, "
         "maximum_pool_size=2**32)",
         "pool(managed, initial_size=1GiB, maximum_size=4GiB)"},
        {"PoolMemoryResource(upstream=CudaMemoryResource(), initial_pool_size=\"1 GiB\")",
         "pool(cuda, initial_size=1GiB)"},
        {"PoolMemoryResource(initial_pool_size='1GiB', upstream_mr = CudaMemoryResource())",
         "pool(cuda, initial_size=1GiB)"},
        {"rmm::mr::pool_memory_resource(rmm::mr::cuda_async_memory_resource())", "pool(async)"},
        {"CudaAsyncMemoryResource(enable_ipc=True)", "async(ipc=true)"},
        {"mr.StatisticsResourceAdaptor(mr.LimitingResourceAdaptor(cuda, allocation_limit=1GiB))",
         "statistics(limiting(cuda, limit=1GiB))"},
        {"ArenaMemoryResource(CudaMemoryResource(), arena_size=1GiB, dump_log_on_failure=False)",
         "arena(cuda, arena_size=1GiB, dump_log_on_failure=0)"},
        {"FixedSizeMemoryResource(cuda_memory_resource(), block_size=1024)",
         "fixed_size(cuda, block_size=1KiB)"},
        {"BinningMemoryResource(upstream_mr=pool(cuda), min_size_exponent=18, "
         "max_size_exponent=22)",
         "binning(pool(cuda), minimum_size=256KiB, maximum_size=4MiB)"},
        {"LoggingResourceAdaptor(CudaMemoryResource(), log_file_name=\"x.csv\")",
         "logging(cuda, path=x.csv)"},
        {"TrackingResourceAdaptor(upstream=cuda, capture_stacks=True)", "tracking(cuda, stacks=1)"},
        {"PrefetchResourceAdaptor(ManagedMemoryResource())", "prefetch(managed)"},
        {"aligned_resource_adaptor(cuda, alignment=1MiB)", "aligned(cuda, alignment=1MiB)"},
        {"SamHeadroomMemoryResource(SystemMemoryResource(), headroom=1GiB)",
         "headroom(system, headroom=1GiB)"},
        {"fallback(upstream=cuda, upstream=PinnedHostMemoryResource())", "fallback(cuda, pinned)"},
        {"CudaAsyncManagedMemoryResource()", "async_managed"},
        {"pool(managed_memory)", "pool(managed)"},
        {"pool(\tcuda,\n\tinitial_size=1GiB)", "pool(cuda, initial_size=1GiB)"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char text[RS_EXPRESSION_TEXT_BYTES], again[RS_EXPRESSION_TEXT_BYTES];
        struct rs_source source;
        struct lines lines;
        struct rs_expression *expression = parse(cases[i][0], &source, &lines);

        if (!expression)
            fail_msg("%s: %s", cases[i][0], lines.text[0]);
        assert_string_equal(rs_expression_format(expression, NULL, text), cases[i][1]);
        rs_expression_free(expression);
        expression = parse(text, &source, &lines);
        assert_non_null(expression);
        assert_string_equal(rs_expression_format(expression, NULL, again), text);
        rs_expression_free(expression);
    }
}

TEST(each_mistake_is_one_line_with_its_place)
{
    static const char *const cases[][2] = {
        {"pol(cuda)",
         "RMM_RESOURCE=^pol(cuda): there is no memory resource of this name; did you mean 'pool'?"},
        {"pool(", "RMM_RESOURCE=pool(^: the text ends where a memory resource is expected"},
        {"pool", "RMM_RESOURCE=^pool: 'pool' needs a memory resource inside its parentheses, as in "
                 "pool(cuda)"},
        {"pool()", "RMM_RESOURCE=^pool(): 'pool' needs a memory resource inside its parentheses, "
                   "as in pool(cuda)"},
        {"", "RMM_RESOURCE=^: the text ends where a memory resource is expected"},
        {"pool(cuda", "RMM_RESOURCE=pool(cuda^: the text ends where ',' or ')' is expected"},
        {"pool(cuda,",
         "RMM_RESOURCE=pool(cuda,^: the text ends inside 'pool(', where option=value or "
         "')' is expected"},
        {"pool(cuda))", "RMM_RESOURCE=pool(cuda)^): unexpected text after the expression"},
        {"pool(cuda, initial=1GiB)",
         "RMM_RESOURCE=pool(cuda, ^initial=1GiB): 'pool' has no option of this name; did you mean "
         "'initial_size'?"},
        {"pool(cuda, inital_size=1GiB)",
         "RMM_RESOURCE=pool(cuda, ^inital_size=1GiB): 'pool' has no option of this name; did you "
         "mean 'initial_size'?"},
        {"pool(cuda, initial_size=1GiB, initial_size=2GiB)",
         "RMM_RESOURCE=pool(cuda, initial_size=1GiB, ^initial_size=2GiB): the option "
         "'initial_size' is given twice"},
        {"pool(cuda, initial_size=255)",
         "RMM_RESOURCE=pool(cuda, initial_size=^255): less than 256B"},
        {"cuda(pool)", "RMM_RESOURCE=cuda(^pool): no other memory resource can stand inside "
                       "the parentheses of 'cuda'"},
        {"binning(cuda, pool(cuda))",
         "RMM_RESOURCE=binning(cuda, ^pool(cuda)): 'binning' already has a memory resource inside "
         "its parentheses; only "
         "bins and options may follow, as in bin(pool(cuda), size=1MiB)"},
        {"binning(cuda, bins=1MiB, bin(cuda))",
         "RMM_RESOURCE=binning(cuda, bins=1MiB, ^bin(cuda)): expected option=value here"},
        {"binning(cuda, bin(cuda), bin(cuda), bin(cuda), bin(cuda), bin(cuda), bin(cuda), "
         "bin(cuda), "
         "bin(cuda))",
         "RMM_RESOURCE=...cuda), bin(cuda), bin(cuda), bin(cuda), ^bin(cuda)): at most 7 bins "
         "can have a memory resource of their own"},
        {"bin(cuda, cuda)", "RMM_RESOURCE=bin(cuda, ^cuda): 'bin' already has a memory resource "
                            "inside its parentheses; options "
                            "need names, as in size=1GiB"},
        {"add_bin(1MiB, cuda)",
         "RMM_RESOURCE=add_bin(^1MiB, cuda): options need names; did you mean size=1MiB?"},
        {"binning(cuda, bins=1MiB+)", "RMM_RESOURCE=binning(cuda, bins=1MiB+^): a size is missing"},
        {"binning(cuda, bins=1MiB+2Q)", "RMM_RESOURCE=binning(cuda, bins=1MiB+2^Q): unknown unit; "
                                        "the possible units are B K KB KiB M MB MiB G "
                                        "GB GiB T TB TiB %"},
        {"cuda(x=1)", "RMM_RESOURCE=cuda(^x=1): 'cuda' has no options"},
        {"pool(cuda, managed)", "RMM_RESOURCE=pool(cuda, ^managed): 'pool' already has a memory "
                                "resource inside its parentheses; options need names, "
                                "as in initial_size=1GiB"},
        {"pool(cuda, upstream=managed)",
         "RMM_RESOURCE=pool(cuda, upstream=^managed): 'pool' already has a memory resource inside "
         "its parentheses; options "
         "need names, as in initial_size=1GiB"},
        {"statistics(cuda, cuda)", "RMM_RESOURCE=statistics(cuda, ^cuda): 'statistics' already has "
                                   "a memory resource inside its parentheses, and has no options"},
        {"tracking(cuda, True)", "RMM_RESOURCE=tracking(cuda, ^True): 'tracking' already has a "
                                 "memory resource inside its parentheses; options need "
                                 "names, as in stacks=0|1"},
        /* values at RMM's positions */
        {"pool(cuda, 1GiB, 4GiB)",
         "RMM_RESOURCE=pool(cuda, ^1GiB, 4GiB): options need names; did you mean "
         "initial_size=1GiB?"},
        {"PoolMemoryResource(cuda, 2**30)",
         "RMM_RESOURCE=PoolMemoryResource(cuda, ^2**30): options need names; did you mean "
         "initial_size=2**30?"},
        {"async(1GiB)",
         "RMM_RESOURCE=async(^1GiB): options need names; did you mean initial_size=1GiB?"},
        {"binning(cuda, 18, 22)",
         "RMM_RESOURCE=binning(cuda, ^18, 22): options need names; did you mean "
         "min_size_exponent=18?"},
        {"binning(cuda, 256KiB, 1MiB)",
         "RMM_RESOURCE=binning(cuda, ^256KiB, 1MiB): options need names; did you mean "
         "minimum_size=256KiB?"},
        {"logging(cuda, \"a.csv\")", "RMM_RESOURCE=logging(cuda, ^\"a.csv\"): options need names; "
                                     "did you mean path=\"a.csv\"?"},
        {"fallback(cuda, managed, pinned)",
         "RMM_RESOURCE=fallback(cuda, managed, ^pinned): 'fallback' already has two memory "
         "resources inside its parentheses, and has no options"},
        {"statistics(cuda, 1)", "RMM_RESOURCE=statistics(cuda, ^1): 'statistics' already has a "
                                "memory resource inside its parentheses, and has no options"},
        {"pool(cuda, managed_memory=True)",
         "RMM_RESOURCE=pool(cuda, ^managed_memory=True): 'managed' is a memory resource; did you "
         "mean pool(managed)?"},
        {"pol_memory_resource(cuda)",
         "RMM_RESOURCE=^pol_memory_resource(cuda): there is no memory resource of "
         "this name; did you mean 'pool'?"},
        {"rmm.mr.pol(cuda)", "RMM_RESOURCE=rmm.mr.^pol(cuda): there is no memory resource of this "
                             "name; did you mean 'pool'?"},
        {"MemoryResource",
         "RMM_RESOURCE=^MemoryResource: there is no memory resource of this name; "
         "`rmmshim resources` lists them"},
        {"pool(initial_size=1GiB, cuda)",
         "RMM_RESOURCE=pool(initial_size=1GiB, ^cuda): expected option=value here"},
        {"logging(cuda, path=\"x)", "RMM_RESOURCE=logging(cuda, path=^\"x): the closing quote is "
                                    "missing"},
        {"1GiB",
         "RMM_RESOURCE=^1GiB: there is no memory resource of this name; `rmmshim resources` lists "
         "them"},
        {"pool(cuda cuda)", "RMM_RESOURCE=pool(cuda ^cuda): expected ',' or ')' here"},
        {"pool(cuda, initial_size=1GiB,",
         "RMM_RESOURCE=pool(cuda, initial_size=1GiB,^: the text ends where option=value or ')' is "
         "expected"},
        {"pool(cuda, 'x)",
         "RMM_RESOURCE=pool(cuda, ^'x): 'pool' already has a memory resource inside its "
         "parentheses; options need names, as in initial_size=1GiB"},
        {"async(pool=1)", "RMM_RESOURCE=async(^pool=1): 'async' has no option of this name; "
                          "`rmmshim resources async` lists them"},
        {"(cuda)", "RMM_RESOURCE=^(cuda): a memory resource is expected here, as in pool(cuda)"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_source source;
        struct lines lines;

        assert_null(parse(cases[i][0], &source, &lines));
        assert_int_equal(lines.count, 1);
        assert_string_equal(lines.text[0], cases[i][1]);
    }
}

TEST(an_expression_too_deep_is_one_diagnostic)
{
    enum { LEVELS = 10000 };
    char *text = malloc(5 * LEVELS + LEVELS + 5);
    struct rs_source source;
    struct lines lines;
    size_t length = 0;

    for (int i = 0; i < LEVELS; i++)
        length += (size_t)sprintf(text + length, "pool(");
    length += (size_t)sprintf(text + length, "cuda");
    memset(text + length, ')', LEVELS);
    text[length + LEVELS] = '\0';
    assert_null(parse(text, &source, &lines));
    assert_int_equal(lines.count, 1);
    assert_non_null(strstr(lines.text[0], "more than 64 levels deep"));
    assert_true(strlen(lines.text[0]) < 200);
    free(text);
}

TEST(reuse_stands_above_what_hands_memory_out_again)
{
    static const char *const cases[][2] = {
        {"cuda", "cuda"},
        {"statistics(cuda)", "statistics(cuda)"},
        {"pool(cuda)", "reuse(pool(cuda))"},
        {"binning(pool(cuda))", "reuse(binning(pool(cuda)))"},
        {"statistics(limiting(logging(pool(cuda), path=x), limit=1GiB))",
         "statistics(limiting(logging(reuse(pool(cuda)), path=x), limit=1GiB))"},
        {"fixed_size(managed)", "reuse(fixed_size(managed))"},
        {"reuse(pool(cuda))", "reuse(pool(cuda))"},
        {"pool(statistics(pool(cuda)))", "reuse(pool(statistics(pool(cuda))))"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char text[RS_EXPRESSION_TEXT_BYTES];
        struct rs_source source;
        struct lines lines;
        struct rs_expression *expression = parse(cases[i][0], &source, &lines);

        assert_non_null(expression);
        expression = rs_expression_insert_reuse(expression);
        assert_string_equal(rs_expression_format(expression, NULL, text), cases[i][1]);
        rs_expression_free(expression);
    }
}

TEST(contradicting_values_are_diagnosed)
{
    static const struct rs_environment environment = {.total_bytes = (size_t)8 << 30,
                                                      .free_bytes = (size_t)4 << 30,
                                                      .host_total_bytes = (size_t)16 << 30,
                                                      .host_free_bytes = (size_t)10 << 30};
    static const struct {
        const char *text;
        bool good_without_device, good_on_device;
    } cases[] = {
        {"pool(cuda, initial_size=2GiB, maximum_size=1GiB)", false, false},
        {"pool(cuda, initial_size=1GiB, maximum_size=1GiB)", true, true},
        {"pool(cuda, initial_size=80%, maximum_size=1GiB)", true, false},
        {"pool(cuda, initial_size=50%free, maximum_size=2GiB)", true, true},
        {"pool(cuda, initial_size=9GiB)", true, false},
        {"pool(cuda, initial_size=100%)", true, true},
        {"limiting(cuda)", false, false},
        {"binning(cuda, bin(cuda, size=1MiB))", true, true},
        {"binning(cuda, bin(cuda))", false, false},
        {"binning(cuda, bin(pool(cuda, initial_size=9GiB), size=1MiB))", true, false},
        /* what is not all device memory is not bounded by it */
        {"pool(managed, initial_size=9GiB, maximum_size=12GiB)", true, true},
        {"pool(pinned, initial_size=9GiB)", true, true},
        {"arena(pinned, arena_size=9GiB)", true, true},
        {"arena(cuda, arena_size=9GiB)", true, false},
        {"pool(fallback(cuda, managed), initial_size=9GiB)", true, true},
        {"pool(fallback(cuda, pinned), initial_size=9GiB)", true, true},
        {"pool(fallback(cuda, cuda), initial_size=9GiB)", true, false},
        {"fallback(pool(cuda, initial_size=9GiB), managed)", true, false},
        {"fallback(cuda, pool(managed, initial_size=9GiB))", true, true},
        /* shares: of device memory there is one whole, and of what is page-locked */
        {"pool(managed, initial_size=150%, maximum_size=200%)", true, true},
        {"pool(managed, initial_size=150%, maximum_size=100%)", true, false},
        {"arena(limiting(managed, limit=110%free), arena_size=101%)", true, true},
        {"pool(fallback(cuda, managed), initial_size=150%)", true, true},
        {"pool(cuda, initial_size=100.01%)", false, false},
        {"pool(cuda, maximum_size=101%free)", false, false},
        {"arena(cuda, arena_size=101%)", false, false},
        {"pool(pinned, initial_size=101%)", false, false},
        {"fallback(limiting(cuda, limit=101%), managed)", false, false},
        {"async(initial_size=1GiB, release_threshold=101%)", false, false},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_source source;
        struct lines lines;
        struct rs_expression *expression = parse(cases[i].text, &source, &lines);

        assert_non_null(expression);
        if (rs_expression_validate(expression, NULL, &lines.diagnostics) !=
            cases[i].good_without_device)
            fail_msg("%s without a device", cases[i].text);
        if (rs_expression_validate(expression, &environment, &lines.diagnostics) !=
            cases[i].good_on_device)
            fail_msg("%s on a device", cases[i].text);
        rs_expression_free(expression);
    }
}

TEST(percentages_are_shown_resolved_for_a_place)
{
    static const struct rs_environment environment = {.total_bytes = (size_t)10 << 30,
                                                      .free_bytes = (size_t)4 << 30,
                                                      .host_total_bytes = (size_t)100 << 30,
                                                      .host_free_bytes = (size_t)40 << 30};
    static const char *const cases[][2] = {
        {"pool(cuda, initial_size=50%free, maximum_size=80%)",
         "pool(cuda, initial_size=2GiB, maximum_size=8GiB)"},
        {"pool(managed, initial_size=50%free, maximum_size=250%)",
         "pool(managed, initial_size=2GiB, maximum_size=25GiB)"},
        {"pool(pinned, initial_size=50%free, maximum_size=80%)",
         "pool(pinned, initial_size=20GiB, maximum_size=80GiB)"},
        {"limiting(arena(system, arena_size=50%), limit=150%)",
         "limiting(arena(system, arena_size=50GiB), limit=150GiB)"},
        /* of each its own, and of the first where both are beneath */
        {"limiting(fallback(pool(cuda, initial_size=10%), pool(pinned, initial_size=10%)), "
         "limit=50%)",
         "limiting(fallback(pool(cuda, initial_size=1GiB), pool(pinned, initial_size=10GiB)), "
         "limit=5GiB)"},
        {"headroom(system, headroom=10%)", "headroom(system, headroom=1GiB)"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char text[RS_EXPRESSION_TEXT_BYTES];
        struct rs_source source;
        struct lines lines;
        struct rs_expression *expression = parse(cases[i][0], &source, &lines);
        assert_non_null(expression);
        assert_string_equal(rs_expression_format(expression, &environment, text), cases[i][1]);
        rs_expression_free(expression);
    }
}

TEST(what_a_limit_counts_is_seen)
{
    enum {
        DEVICE = 1 << RS_MEMORY_DEVICE,
        MANAGED = 1 << RS_MEMORY_MANAGED,
        HOST = 1 << RS_MEMORY_HOST
    };
    static const struct {
        const char *text;
        unsigned memories;
        bool overcommits;
    } cases[] = {
        {"cuda", DEVICE, false},
        {"pool(virtual)", DEVICE, false},
        {"managed", MANAGED, true},
        {"pool(managed(charged=0))", HOST, true},
        {"async_managed", MANAGED, true},
        {"arena(pinned)", HOST, false},
        {"system", HOST, true},
        {"statistics(fallback(pool(cuda), pool(managed)))", DEVICE | MANAGED, true},
        {"fallback(cuda, pinned)", DEVICE | HOST, false},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_source source;
        struct lines lines;
        struct rs_expression *expression = parse(cases[i].text, &source, &lines);
        assert_non_null(expression);
        assert_int_equal(rs_expression_memories(expression), cases[i].memories);
        assert_int_equal(rs_expression_overcommits(expression), cases[i].overcommits);
        rs_expression_free(expression);
    }
}
