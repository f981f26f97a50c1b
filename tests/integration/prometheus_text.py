# SPDX-License-Identifier: Apache-2.0
"""Reads Prometheus' text format strictly, with the checks of `promtool check metrics`."""
import re

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*$")
LABEL = re.compile(r'([a-z][a-z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)$")
NUMBER = re.compile(r"\d+(\.\d+)?$")
TYPES = {"counter", "gauge"}
UNITS = {"nanoseconds", "milliseconds", "microseconds", "minutes", "kilobytes", "megabytes", "kib", "mib", "bits", "ms",
         "ns", "us"}  # not the base units
SUFFIXES = {"count", "sum", "bucket"}  # histograms' and summaries'
KINDS = {"counter", "gauge", "histogram", "summary"}


class Metric:
    def __init__(self, name, text):
        self.name, self.help, self.type, self.samples = name, text, None, {}


def check_name(name, kind):
    words = name.split("_")
    if not NAME.match(name):
        raise ValueError("%s is not snake_case" % name)
    if (kind == "counter") != (words[-1] == "total"):
        raise ValueError("%s is a %s" % (name, kind))
    if words[-1] in SUFFIXES or set(words) & UNITS or set(words) & KINDS:
        raise ValueError("%s has a word that it must not have" % name)


def labels_of(text):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        if not match or match.group(1) in labels:
            raise ValueError("labels %r" % text)
        labels[match.group(1)] = match.group(2)
        at = match.end()
        if at < len(text):
            if text[at] != ",":
                raise ValueError("labels %r" % text)
            at += 1
    return labels


def read_comment(line, metrics):
    _, kind, name, text = (line.split(" ", 3) + ["", "", ""])[:4]
    if kind == "HELP":
        if name in metrics or not text.strip():
            raise ValueError("HELP of %s" % name)
        metrics[name] = Metric(name, text)
    elif kind == "TYPE":
        if name not in metrics or list(metrics)[-1] != name or metrics[name].type or text not in TYPES:
            raise ValueError("TYPE of %s" % name)
        check_name(name, text)
        metrics[name].type = text
    else:
        raise ValueError("comment %r" % line)


def read_sample(line, metrics):
    match = SAMPLE.match(line)
    if not match:
        raise ValueError("sample %r" % line)
    name, labels, value = match.group(1), labels_of(match.group(2)), match.group(3)
    if not metrics or list(metrics)[-1] != name or not metrics[name].type:
        raise ValueError("%s is not below its HELP and TYPE" % name)
    key = tuple(sorted(labels.items()))
    if key in metrics[name].samples:
        raise ValueError("%s has %r twice" % (name, labels))
    if not NUMBER.match(value):
        raise ValueError("%s is %r" % (name, value))
    metrics[name].samples[key] = float(value)


def read(text):
    """Metrics by name; ValueError says what is wrong."""
    metrics = {}
    if not text.endswith("\n"):
        raise ValueError("the last line is cut off")
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            read_comment(line, metrics)
        else:
            read_sample(line, metrics)
    for metric in metrics.values():
        if not metric.type or not metric.samples:
            raise ValueError("%s has no type or no sample" % metric.name)
    return metrics
