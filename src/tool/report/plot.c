/* SPDX-License-Identifier: Apache-2.0 */
/* A picture of memory over time, in SVG (tool/report/outputs.h): a panel for each kind of memory on
 * each device. */
#include "base/check.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

enum {
    WIDTH = 960,
    PANEL_HEIGHT = 200,
    TITLE_HEIGHT = 28, /* the height of a panel's title, above the plot */
    AXIS_HEIGHT = 22,
    LEFT = 90,
    RIGHT = 20,
    PLOT_WIDTH = WIDTH - LEFT - RIGHT,
    PLOT_HEIGHT = PANEL_HEIGHT - TITLE_HEIGHT - AXIS_HEIGHT,
    PANELS_MAX = 64,
    LINES_MAX = 6, /* the most lines of a grid, without the one at 0 */
    LAST_WIDTH =
        12, /* a centred text that is nearer to the right edge than this would be cut off */
};

static const char head[] =
    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
    "font-family=\"sans-serif\" font-size=\"12\">\n"
    "<style>\n"
    "svg{background:#fff;color:#222}text{fill:#222}.grid{stroke:#ddd;fill:none}\n"
    ".used{fill:#4477aa;stroke:none}.held{fill:none;stroke:#bb5500;stroke-width:1.5}\n"
    ".limit{stroke:#cc3311;stroke-dasharray:6 4}\n"
    "@media(prefers-color-scheme:dark){svg{background:#181a1d;color:#ddd}text{fill:#ddd}\n"
    ".grid{stroke:#444}.used{fill:#77aadd}.held{stroke:#ee8866}}\n"
    "</style>\n";

/* Stands in the first line, beside the title of the first panel. */
static const char legend[] =
    "<rect class=\"used\" x=\"746\" y=\"8\" width=\"16\" height=\"10\"/>"
    "<text x=\"768\" y=\"18\">used</text>"
    "<path class=\"held\" d=\"M810 13h16\"/><text x=\"832\" y=\"18\">held</text>"
    "<path class=\"limit\" d=\"M872 13h16\"/><text x=\"894\" y=\"18\">limit</text>\n";

/* A panel's scales: x over the whole time, y up to the largest value. */
struct scale {
    double top, width_ns, all_ns;
};

static double x_of(const struct scale *scale, uint64_t index)
{
    double ns = (double)index * scale->width_ns;

    return LEFT + PLOT_WIDTH * (ns < scale->all_ns ? ns / scale->all_ns : 1);
}

static double y_of(const struct scale *scale, uint64_t bytes)
{
    return TITLE_HEIGHT + PLOT_HEIGHT * (1 - (double)bytes / scale->top);
}

/* Returns the smallest of 1, 2, 5, 10, 20 ... units that divides `span` into at most LINES_MAX
 * parts. */
static double decimal_step(double span, double unit)
{
    static const double factors[] = {1, 2, 5};

    for (;; unit *= 10)
        for (size_t i = 0; i < RS_ARRAY_LENGTH(factors); i++)
            if (span <= LINES_MAX * factors[i] * unit)
                return factors[i] * unit;
}

/* Returns a step whose multiples have short texts, unlike those of 20 s: 80 s is 1.33 min. */
static double time_step(double ns)
{
    return decimal_step(ns, ns <= 60e9 ? 1 : ns <= 3600e9 ? 30e9 : ns <= 10800e9 ? 1800e9 : 3600e9);
}

static double size_step(double bytes)
{
    double step = 1;

    while (bytes > LINES_MAX * step)
        step *= 2;
    return step;
}

static void put_axes(FILE *to, const struct scale *scale)
{
    char text[DURATION_TEXT_BYTES];
    double step = size_step(scale->top);

    for (double bytes = 0; bytes <= scale->top; bytes += step) {
        double y = y_of(scale, (uint64_t)bytes);
        fprintf(to, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>", LEFT, y, LEFT + PLOT_WIDTH);
        fprintf(to, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 6, y + 4,
                tool_bytes((uint64_t)bytes));
    }
    step = time_step(scale->all_ns);
    for (double ns = 0; ns <= scale->all_ns; ns += step) {
        double x = LEFT + PLOT_WIDTH * ns / scale->all_ns;
        fprintf(to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s</text>\n", x, PANEL_HEIGHT - 6,
                x > LEFT + PLOT_WIDTH - LAST_WIDTH ? "end" : "middle",
                duration_text((uint64_t)ns, text));
    }
}

/* Draws a curve: up to each bucket's greatest value, then along its last value to the next one. */
static void put_levels(FILE *to, const struct scale *scale, const struct timeline *timeline,
                       bool is_held)
{
    const struct timeline_bucket *bucket = timeline->buckets, *end = bucket + timeline->count;
    double bottom = y_of(scale, 0);

    fprintf(to, "<path class=\"%s\" d=\"M%.1f %.1f", is_held ? "held" : "used",
            x_of(scale, bucket->index), bottom);
    for (; bucket < end; bucket++) {
        uint64_t most = is_held ? bucket->most_held : bucket->most_used;
        uint64_t last = is_held ? bucket->last_held : bucket->last_used;
        fprintf(to, "V%.1fH%.1fV%.1fH%.1f", y_of(scale, most), x_of(scale, bucket->index + 1),
                y_of(scale, last),
                bucket + 1 < end ? x_of(scale, bucket[1].index) : (double)LEFT + PLOT_WIDTH);
    }
    fprintf(to, "V%.1f%s\"/>\n", bottom, is_held ? "" : "Z");
}

static void put_panel(FILE *to, const struct run *run, const struct series *series, int number)
{
    char name[SERIES_TEXT_BYTES];
    uint64_t top = rs_max(rs_max(series->peak_used, series->peak_held), 1);
    struct scale scale = {.width_ns = (double)series->timeline.width_ns,
                          .all_ns = (double)rs_max(run->end_ns, 1)};

    scale.top = 1.05 * (double)rs_max(top, series->limit < 2 * top ? series->limit : 0);
    fprintf(to, "<g transform=\"translate(0 %d)\"><text x=\"%d\" y=\"18\">", number * PANEL_HEIGHT,
            LEFT);
    put_escaped(to, run->title, SIZE_MAX, false);
    fprintf(to, ", %s: peak %s used</text>\n", series_text(series, name),
            tool_bytes(series->peak_used));
    put_axes(to, &scale);
    if (series->timeline.count)
        put_levels(to, &scale, &series->timeline, false);
    if (series->timeline.count && series->peak_held)
        put_levels(to, &scale, &series->timeline, true);
    if (series->limit && (double)series->limit < scale.top)
        fprintf(to, "<path class=\"limit\" d=\"M%d %.1fH%d\"/>", LEFT, y_of(&scale, series->limit),
                LEFT + PLOT_WIDTH);
    fputs("</g>\n", to);
}

void plot_write(FILE *to, struct analysis *analysis)
{
    int panels = 0, done = 0;

    for (size_t i = 0; i < analysis->run_count; i++)
        panels += (int)analysis->runs[i]->series_count;
    panels = (int)rs_min((size_t)panels, PANELS_MAX);
    fprintf(to, head, WIDTH, panels * PANEL_HEIGHT, WIDTH, panels * PANEL_HEIGHT);
    fputs(legend, to);
    for (size_t i = 0; i < analysis->run_count; i++) {
        const struct run *run = analysis->runs[i];
        for (size_t at = 0; at < run->series_count && done < panels; at++) {
            timeline_shrink(&run->series[at].timeline, WIDTH);
            put_panel(to, run, &run->series[at], done++);
        }
    }
    fputs("</svg>\n", to);
}
